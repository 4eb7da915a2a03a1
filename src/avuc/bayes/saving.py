"""The state dict of a BayesianModule: plain tensors under the names of the original module.

mu.<name>  rho.<name>                 every variational tensor, in its own shape
prior_mean  prior_std                 numbers, or prior_mean.<name> … if given per weight
settings                              posterior and estimator: JSON in a tensor of bytes
module.<name>                         deterministic parameters and buffers
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from avuc.bayes.layout import Layout
from avuc.core.errors import InputError

VECTORS = ("mu", "rho", "prior_mean", "prior_std")


def encode(layout: Layout, vectors: Mapping[str, Tensor], settings: Mapping[str, str]) -> dict[str, Tensor]:
    """Return the state-dict entries of the flat vectors: contiguous, and views of them if possible."""
    entries: dict[str, Tensor] = {}
    for vector in VECTORS:
        flat = vectors[vector]
        if flat.dim() == 0:
            entries[vector] = flat
        else:
            entries.update({f"{vector}.{name}": view.contiguous() for name, view in layout.by_name(flat).items()})
    entries["settings"] = torch.frombuffer(bytearray(json.dumps(dict(settings)).encode()), dtype=torch.uint8)
    return entries


def decode(settings: Tensor) -> dict[str, str]:
    values: dict[str, str] = json.loads(bytes(settings.cpu().tolist()))
    return values


def restore(
    layout: Layout,
    entries: Mapping[str, Tensor],
    like: Tensor,
    missing: list[str],
    errors: list[str],
) -> dict[str, Tensor]:
    """Return the flat vectors in `entries`; absent names go to `missing`, wrong shapes to `errors`."""
    vectors: dict[str, Tensor] = {}
    for vector in VECTORS:
        if vector in entries:
            if entries[vector].dim():
                errors.append(f"{vector}: expected a number, found shape {tuple(entries[vector].shape)}")
            else:
                vectors[vector] = entries[vector].detach().to(like)
            continue
        per_weight = any(key.startswith(f"{vector}.") for key in entries)
        if not per_weight and vector.startswith("prior"):
            missing.append(vector)
            continue
        tensors = {}
        for slot in layout.slots:
            key = f"{vector}.{slot.name}"
            if key not in entries:
                missing.append(key)
            elif tuple(entries[key].shape) != tuple(slot.shape):
                errors.append(f"{key}: expected shape {tuple(slot.shape)}, found {tuple(entries[key].shape)}")
            else:
                tensors[slot.name] = entries[key].detach().to(like)
        if len(tensors) == len(layout.slots):
            vectors[vector] = layout.flatten(tensors)
    return vectors


def check(layout: Layout, expected: Mapping[str, Any], saved: Mapping[str, Any], strict: bool) -> None:
    """Raise `InputError` for a state dict of another architecture, before anything is overwritten."""
    shapes = {key: tuple(value.shape) for key, value in expected.items() if key != "settings"}
    # one of the two priors may be a number and the other one per weight; the saved prior is used
    priors = [vector for vector in VECTORS if vector.startswith("prior")]
    shapes |= {f"{vector}.{slot.name}": tuple(slot.shape) for vector in priors for slot in layout.slots}
    shapes |= dict.fromkeys(priors, ())
    problems = [
        f"{key}: expected shape {shape}, found {tuple(saved[key].shape)}"
        for key, shape in shapes.items()
        if key in saved and shape != tuple(saved[key].shape)
    ]
    if strict:
        fixed = [key for key in expected if key.split(".")[0] not in priors]
        problems += [f"{key}: expected shape {shapes.get(key, '')}, found nothing" for key in fixed if key not in saved]
        problems += [
            f"{vector}: expected a number or a tensor for every variational weight, found neither"
            for vector in priors
            if vector not in saved and not all(f"{vector}.{slot.name}" in saved for slot in layout.slots)
        ]
        known = {*shapes, "settings"}
        problems += [f"{key}: not expected, found shape {tuple(saved[key].shape)}" for key in saved if key not in known]
    if problems:
        rest = f"; and {len(problems) - 6} more" if len(problems) > 6 else ""
        raise InputError(
            "the saved weights are of another architecture or another choice of layers: "
            + "; ".join(problems[:6])
            + rest
            + "; convert the same module with the same layers= before loading"
        )
