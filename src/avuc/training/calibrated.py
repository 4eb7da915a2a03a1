"""`Calibrated`: a posterior with its calibrator, to predict with, to save and to load."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from avuc.bayes import BayesianModule, Normal, to_bayesian
from avuc.bayes.layout import Named
from avuc.bayes.module import ESTIMATORS, POSTERIORS
from avuc.calibration import Calibrator
from avuc.core.display import Displayed
from avuc.core.errors import InputError
from avuc.core.private_copy import deep_copy
from avuc.core.tensor_file import read_tensors, write_tensors
from avuc.methods.vanilla import DeterministicPosterior
from avuc.posterior import Posterior
from avuc.prediction import predict
from avuc.prediction.model import takes_bytes
from avuc.predictions import Predictions
from avuc.training.fitted import Fitted

T = TypeVar("T")
Saved = BayesianModule | DeterministicPosterior
FORMAT, VERSION = "avuc-calibrated", "1"
KEYS = {"format", "version", "posterior", "takes_bytes", "calibrator"}
# bytes of the names of posterior and estimator
MOST_SETTINGS = 1000


@dataclass(frozen=True, eq=False, repr=False)
class Calibrated(Displayed):
    """The result of `fit_calibrated`: a posterior and a temperature for its samples.

    Args:
        posterior: for `avuc.predict` and `avuc.Predictor`.
        calibrator: the fitted temperature.
        network_fit: training of the network (step 1); None after `load`.
        posterior_fit: training of the posterior around it (step 2); None after `load`.

    >>> from avuc.data import load_dataset
    >>> from avuc.nets import mlp
    >>> from avuc.train import fit_calibrated
    >>> data = load_dataset("mnist5k").subset(range(0, 4000, 20))
    >>> result = fit_calibrated(lambda g: mlp(generator=g), data, data, epochs=1, flip=False, progress=False)
    >>> result.posterior_fit.epochs, result.predict(data.images[:3], samples=2).probs.shape
    (2, torch.Size([3, 10]))
    """

    posterior: Posterior
    calibrator: Calibrator
    network_fit: Fitted | None = None
    posterior_fit: Fitted | None = None

    def _facts(self) -> Mapping[str, Any]:
        return {
            "posterior": type(self.posterior).__name__,
            "calibrator": type(self.calibrator).__name__,
            "temperature": self.calibrator.temperature_,
        }

    @property
    def first(self) -> Fitted | None:
        """Old name of `network_fit`."""
        return renamed("Calibrated.first", "network_fit", self.network_fit)

    @property
    def second(self) -> Fitted | None:
        """Old name of `posterior_fit`."""
        return renamed("Calibrated.second", "posterior_fit", self.posterior_fit)

    def predict(
        self,
        images: Tensor | np.ndarray,
        labels: Tensor | np.ndarray | None = None,
        *,
        samples: int | Literal["auto"] = 128,
        seed: int = 0,
        dtype: torch.dtype | None = None,
        progress: bool = False,
    ) -> Predictions:
        """Return calibrated predictions; the arguments are those of `avuc.predict`.

        To predict many sets of images, pass the posterior and the calibrator to a `Predictor`.
        """
        return predict(
            self.posterior,
            images,
            labels,
            samples=samples,
            calibrator=self.calibrator,
            seed=seed,
            dtype=dtype,
            progress=progress,
        )

    def save(self, path: str | Path) -> None:
        """Write the posterior and the calibrator to one .safetensors file, which holds numbers and text, no code.

        Args:
            path: the file; it is complete or absent.
        """
        if isinstance(self.posterior, BayesianModule):
            kind = "bayesian"
        elif isinstance(self.posterior, DeterministicPosterior):
            kind = "network"
        else:
            raise InputError(
                "save: expected a posterior over the weights of a network (to_bayesian, SVI) or a plain network, found "
                f"{type(self.posterior).__name__}"
            )
        metadata = {
            "format": FORMAT,
            "version": VERSION,
            "posterior": kind,
            "takes_bytes": str(takes_bytes(self.posterior)),
            "calibrator": self.calibrator.to_json(),
        }
        write_tensors(path, dict(self.posterior.state_dict()), metadata)

    @classmethod
    def load(cls, path: str | Path, net: nn.Module) -> Self:
        """Return what `save` wrote. The file is checked completely before anything is used.

        Args:
            path: the file.
            net: a network of the architecture that was trained; its weights do not matter, and it is not changed.
        """
        tensors, metadata = read_tensors(path)
        try:
            posterior, calibrator = _restored(tensors, metadata, net)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
        return cls(posterior, calibrator)


def _restored(tensors: dict[str, Tensor], metadata: dict[str, str], net: nn.Module) -> tuple[Saved, Calibrator]:
    if metadata.get("format") != FORMAT:
        raise InputError(f"not a file of Calibrated.save (no format {FORMAT!r}); save it again")
    if set(metadata) != KEYS or metadata["version"] != VERSION:
        raise InputError(f"expected version {VERSION} with the keys {', '.join(sorted(KEYS))}; save it again")
    if metadata["takes_bytes"] not in ("True", "False"):
        raise InputError(f"takes_bytes must be True or False; found {metadata['takes_bytes'][:40]!r}")
    calibrator = Calibrator.from_json(metadata["calibrator"])
    if not hasattr(calibrator, "temperature_"):
        raise InputError("the calibrator was saved before it was fitted; fit it and save again")
    posterior: Saved
    if metadata["posterior"] == "bayesian":
        posterior = _like_saved(tensors, net)
    elif metadata["posterior"] == "network":
        posterior = DeterministicPosterior(deep_copy(net))
    else:
        raise InputError(f"posterior must be bayesian or network; found {metadata['posterior'][:40]!r}")
    _check_tensors(tensors, posterior.state_dict())
    posterior.load_state_dict(tensors)
    if metadata["takes_bytes"] == "True":
        posterior.takes_bytes = True
    return posterior.eval(), calibrator


def _like_saved(tensors: dict[str, Tensor], net: nn.Module) -> BayesianModule:
    """Return an untrained posterior over the weights that the file has means for."""
    _check_settings(tensors.get("settings"))
    sampled = frozenset(name.removeprefix("mu.") for name in tensors if name.startswith("mu."))
    if sampled.isdisjoint(name for name, _ in net.named_parameters()):
        raise InputError(f"the saved weights are of another architecture than {type(net).__name__}; give the same one")
    return to_bayesian(net, layers=Named(sampled), prior=Normal(_prior("mean", tensors), _prior("std", tensors)))


def _prior(name: str, tensors: dict[str, Tensor]) -> float | dict[str, Tensor]:
    """Return the saved mean or standard deviation of the prior: a number, or a tensor for each weight."""
    whole, start = tensors.get(f"prior_{name}"), f"prior_{name}."
    if whole is None:
        return {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}
    if whole.numel() != 1 or not whole.is_floating_point():
        raise InputError(f"prior_{name}: expected a number, found {tuple(whole.shape)} {whole.dtype}; save it again")
    return float(whole)


def _check_settings(settings: Tensor | None) -> None:
    """Raise for settings that are not the two names that a BayesianModule saves."""
    try:
        if settings is None or settings.dtype != torch.uint8 or settings.ndim != 1 or len(settings) > MOST_SETTINGS:
            raise ValueError("no short list of bytes")
        names = json.loads(bytes(settings.tolist()))
        if not isinstance(names, dict) or set(names) != {"posterior", "estimator"}:
            raise ValueError("other names than posterior and estimator")
        if names["posterior"] not in POSTERIORS or names["estimator"] not in ESTIMATORS:
            raise ValueError("unknown posterior or estimator")
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"the settings of the posterior are damaged ({str(error)[:80]}); save it again") from error


def _check_tensors(saved_tensors: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Raise unless names, shapes and types are those of the posterior, and all numbers are finite."""
    missing, unknown = sorted(set(expected) - set(saved_tensors)), sorted(set(saved_tensors) - set(expected))
    if missing or unknown:
        raise InputError(
            f"the saved weights are of another architecture: missing {missing[:3]}, unknown {unknown[:3]}; give the "
            "same network as in training"
        )
    for name, tensor in expected.items():
        if name == "settings":
            continue
        saved = saved_tensors[name]
        if saved.shape != tensor.shape or saved.dtype != tensor.dtype:
            raise InputError(
                f"{name}: expected {tuple(tensor.shape)} {tensor.dtype}, found {tuple(saved.shape)} {saved.dtype}; "
                "give the same network as in training"
            )
        # a causal mask of attention holds infinity, in the given network, too
        odd = ~torch.isfinite(saved) if saved.is_floating_point() else torch.zeros((), dtype=torch.bool)
        if bool(odd.any()) and not torch.equal(saved[odd], tensor.cpu()[odd]):
            raise InputError(f"{name}: holds NaN or infinity; save a model whose training did not diverge")


def renamed(old: str, new: str, value: T) -> T:
    """Return the value, with a warning that it has a new name."""
    warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=3)
    return value
