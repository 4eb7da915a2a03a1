"""The output layer of a causal language model: where it is, and what the model does between it and its loss."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from avuc.core.errors import InputError
from avuc.posterior import evaluating
from avuc.transformers.objective import unwrapped

# Attributes of a configuration that may hold a cap or a factor of the logits; `find_logits` tries them.
CAPS = ("final_logit_softcapping", "logits_soft_cap")
SCALES = ("logit_scale", "logits_scaling", "lm_head_multiplier")
# the logits that `find_logits` makes have this standard deviation, so that a cap of 30 shows
SPREAD = 20.0


class Logits(NamedTuple):
    """How logits follow from the product z of output layer and hidden states: softcap·tanh(scale·z/softcap)."""

    scale: float | None
    softcap: float | None


def causal_model(model: Any) -> Any:
    """Return the causal language model inside wrappers and adapters; raise `InputError` if there is none."""
    inner = unwrapped(model)
    inner = getattr(inner, "_orig_mod", inner)  # torch.compile
    if hasattr(inner, "get_base_model"):  # peft
        inner = inner.get_base_model()
    if not isinstance(inner, PreTrainedModel):
        raise InputError(f"use_linear_avuc: give a model of Transformers, or of peft; found {type(inner).__name__}")
    name = type(inner).__name__
    if getattr(inner.config, "is_encoder_decoder", False):
        raise InputError(f"use_linear_avuc: {name} is an encoder-decoder; only causal language models are supported")
    return inner


def output_layer(model: Any) -> nn.Linear:
    """Return the output layer; raise `InputError` if it is not one matrix of floating-point weights."""
    name, head = type(model).__name__, model.get_output_embeddings()
    if head is None:
        raise InputError(f"use_linear_avuc: {name} has no output embeddings; use AvUCTrainer, which takes classifiers")
    if hasattr(head, "base_layer") or hasattr(head, "modules_to_save"):
        raise InputError(
            "use_linear_avuc: the output layer has an adapter; leave it out of target_modules and modules_to_save"
        )
    if not isinstance(head, nn.Linear) or not head.weight.is_floating_point():
        raise InputError(
            f"use_linear_avuc: the output layer must be an nn.Linear in floating point, found {type(head).__name__}; "
            "leave it out of the quantisation"
        )
    if hasattr(head.weight, "device_mesh") or head.weight.ndim != 2:
        raise InputError(
            "use_linear_avuc: the weights of the output layer are split over processes; keep that layer whole"
        )
    if head.weight.is_meta:
        raise InputError("use_linear_avuc: the weights are on the meta device; load them first")
    return head


@torch.no_grad()
def find_logits(model: Any) -> Logits:
    """Run the model on four tokens and return how its logits and its loss follow from the output layer.

    Raises `InputError` if they do not follow in a way that `linear_avuc` knows.
    """
    head, name = output_layer(model), type(model).__name__
    vocabulary, width = head.weight.shape
    embeddings = model.get_input_embeddings().weight
    ids = (torch.arange(4, device=embeddings.device) % min(len(embeddings), vocabulary)).unsqueeze(0)
    directions = torch.randn(1, 4, width, generator=torch.Generator().manual_seed(0)).to(head.weight)
    spread = F.linear(directions, head.weight).float().std().item()
    directions *= SPREAD / spread if spread > 0 else 1.0
    raw = F.linear(directions, head.weight, head.bias).float()
    shapes: list[torch.Size] = []

    def replace(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor]:
        shapes.append(inputs[0].shape)
        return (directions.to(inputs[0].dtype),)

    with evaluating(model), _hook(head, replace):
        try:
            outputs = model(input_ids=ids, labels=ids, return_dict=True, **_padding(model, ids))
        except Exception as error:  # anything that a model's own code raises
            raise InputError(f"use_linear_avuc: {name} does not run on four tokens: {error}") from error
    rough = head.weight.dtype in (torch.bfloat16, torch.float16)
    logits = _fitting(model, raw, outputs.logits, 2e-2 if rough else 1e-4)
    if logits is None or shapes != [directions.shape]:
        raise InputError(f"use_linear_avuc: {name} changes its logits in a way that is not known here; use AvUCTrainer")
    scores = apply(logits, raw)[0, :-1]
    expected = F.cross_entropy(scores, ids[0, 1:].to(scores.device)) + auxiliary_loss(model, outputs)
    gap = math.inf if outputs.loss is None else (outputs.loss.to(expected.device) - expected).abs().item()
    if not gap <= (5e-2 if rough else 1e-5) * max(1.0, expected.abs().item()):
        raise InputError(
            f"use_linear_avuc: the loss of {name} is not the cross-entropy of the next token; use AvUCTrainer"
        )
    return logits


def apply(logits: Logits, raw: Tensor) -> Tensor:
    """Return the logits of the products `raw` of output layer and hidden states."""
    scaled = raw if logits.scale is None else raw * logits.scale
    return scaled if logits.softcap is None else logits.softcap * torch.tanh(scaled / logits.softcap)


def auxiliary_loss(model: Any, outputs: Any) -> Any:
    """Return the load-balancing term in the loss of a mixture of experts; 0 for other models."""
    loss, weight = getattr(outputs, "aux_loss", None), getattr(model, "router_aux_loss_coef", None)
    return 0.0 if loss is None or weight is None else weight * loss


def _fitting(model: Any, raw: Tensor, logits: Tensor, tolerance: float) -> Logits | None:
    """Return the first candidate that turns `raw` into the logits that the model returned."""
    if logits.shape != raw.shape:
        return None
    config = model.config.get_text_config()
    caps = [float(cap) for name in CAPS if (cap := getattr(config, name, None))]
    scales = [float(scale) for name in SCALES if (scale := getattr(config, name, None))]
    scales += [1 / scale for scale in scales]
    for scale in (None, *scales):
        for cap in (*caps, None):
            candidate = Logits(scale, cap)
            expected = apply(candidate, raw)
            if (logits.float().to(raw.device) - expected).abs().max() <= tolerance * expected.abs().max():
                return candidate
    return None


def _padding(model: Any, ids: Tensor) -> dict[str, Tensor]:
    """Return a mask that leaves the last token out; the loss that is expected here does not depend on the mask."""
    mask = torch.ones_like(ids)
    mask[:, -1] = 0
    return {"attention_mask": mask} if "attention_mask" in inspect.signature(model.forward).parameters else {}


@contextlib.contextmanager
def _hook(head: nn.Module, hook: Any) -> Iterator[None]:
    handle = head.register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()
