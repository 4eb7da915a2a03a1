"""A calibrator read from its JSON file, for programs with NumPy and no torch. docs/guide/deploy.md has the format."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from avuc.core.calibrator_names import CALIBRATOR_NAMES
from avuc.core.errors import InputError
from avuc.core.files import read_text
from avuc.deploy.rules import RULES, Array, Rule, number, vector

FORMAT, VERSION = "avuc-calibrator", 1
METHODS = (*CALIBRATOR_NAMES, "multilabel", "blend")
KEYS = {"format", "version", "calibrator", "params", "learned", "class_names"}
MOST_BYTES = 1 << 26


@dataclass(frozen=True, eq=False)
class NumpyCalibrator:
    """A fitted calibrator. `load_calibrator` makes it.

    Args:
        method: name of the calibrator, such as "temperature" or "vector".
        num_classes: number C of classes, or of labels if the method is "multilabel".
        scale: (C,) or a number: 1/T for a temperature.
        bias: (C,), or None for temperatures.
        class_names: names of the classes in the order of the logits; None if they have none.
        rule: function from logits to calibrated logits, for methods that are more than scale and bias.
    """

    method: str
    num_classes: int
    scale: Array
    bias: Array | None
    class_names: tuple[str, ...] | None
    rule: Rule | None = None

    def transform(self, logits: Any) -> Array:
        """Return calibrated logits of the same shape, in float32 or float64.

        Two classes may be given by one logit for each row, (N,) or (N, 1).

        Args:
            logits: (N, C), or (S, N, C) for S posterior samples.
        """
        z, two = self._read(logits)
        if two is not z:
            calibrated = self._rescaled(two)
            return np.asarray((calibrated[..., 1] - calibrated[..., 0]).reshape(z.shape))
        return self._rescaled(z)

    def probs(self, logits: Any) -> Array:
        """Return calibrated probabilities (N, C); the mean over posterior samples if there are several.

        They are the softmax of the calibrated logits; for the method "multilabel", the sigmoid of each.

        Args:
            logits: as for `transform`.
        """
        _, two = self._read(logits)
        z = self._rescaled(two)
        with np.errstate(over="ignore"):
            if self.method == "multilabel":
                p = 1 / (1 + np.exp(-z))
            else:
                exps = np.exp(z - z.max(axis=-1, keepdims=True))
                p = exps / exps.sum(axis=-1, keepdims=True)
        return np.asarray(p.mean(axis=0) if p.ndim == 3 else p)

    def _rescaled(self, z: Array) -> Array:
        impossible, most = np.isneginf(z), np.finfo(z.dtype).max
        with np.errstate(over="ignore"):
            if self.rule is not None and self.method == "multilabel":
                finite = np.isfinite(z)
                return np.where(finite, np.clip(self.rule(np.where(finite, z, 0)), -most, most), z).astype(z.dtype)
            if self.rule is not None:
                return np.where(impossible, -np.inf, np.clip(self.rule(z), -most, most)).astype(z.dtype)
            if self.method == "multilabel":
                return np.where(np.isfinite(z), np.clip(z * self.scale, -most, most), z).astype(z.dtype)
            # relative to the largest logit, which changes no probability
            top = np.where(impossible, 0, np.clip(z - z.max(axis=-1, keepdims=True), -most, 0))
            if self.bias is None:
                scaled, below = z * self.scale, np.clip(top * self.scale, -most, 0)
                lost = (np.isinf(scaled.astype(z.dtype)) & ~impossible).any(axis=-1, keepdims=True)
                result = np.where(lost, below, scaled)
            else:
                total = np.where(impossible, 0, np.exp(top)).sum(axis=-1, keepdims=True)
                result = np.clip((top - np.log(total)) * self.scale + self.bias, -most, most)
        return np.where(impossible, -np.inf, result).astype(z.dtype)

    def _read(self, logits: Any) -> tuple[Array, Array]:
        """Return the logits, and the same with two columns if one logit per row stands for two classes."""
        z = np.asarray(logits)
        if z.dtype.kind not in "fiu":
            raise InputError(f"logits must be real numbers; found {z.dtype}")
        if z.dtype not in (np.float32, np.float64):
            z = z.astype(np.float32 if z.dtype == np.float16 else np.float64)
        two = z
        if (
            self.num_classes == 2
            and self.method != "multilabel"
            and (z.ndim == 1 or (z.ndim == 2 and z.shape[-1] == 1))
        ):
            log_odds = z.reshape(-1)
            two = np.stack((np.zeros_like(log_odds), log_odds), axis=-1)
        if two.ndim not in (2, 3) or two.shape[-1] != self.num_classes or not z.size:
            raise InputError(
                f"logits must be (rows, {self.num_classes}) or (samples, rows, {self.num_classes}), as in the fit; "
                f"found shape {z.shape}"
            )
        if np.isnan(two).any() or (self.method != "multilabel" and not np.isfinite(two.max(axis=-1)).all()):
            raise InputError("logits contain NaN or +inf, or a row that is all −inf; remove these rows")
        return z, two


def load_calibrator(path: str | Path) -> NumpyCalibrator:
    """Return the calibrator in a file that `Calibrator.save` or `avuc calibrate` wrote. Needs NumPy only, not torch.

    Args:
        path: the JSON file.

    >>> import tempfile
    >>> from avuc.calibration import TemperatureScaling
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     TemperatureScaling.identity(2).save(f"{folder}/cal.json")
    ...     calibrator = load_calibrator(f"{folder}/cal.json")
    >>> calibrator.probs([[0.0, 0.0]])
    array([[0.5, 0.5]])
    """
    try:
        content = json.loads(read_text(path, MOST_BYTES))
    except OSError as error:
        raise InputError(f"{path}: cannot read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a calibrator, it is not valid JSON ({str(error)[:80]})") from error
    try:
        return _calibrator(content)
    except InputError as error:
        raise InputError(f"{path}: {error}; write it again with avuc calibrate or Calibrator.save") from error


def _calibrator(content: Any) -> NumpyCalibrator:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f'not a calibrator (no "format": "{FORMAT}")')
    if content.get("version") != VERSION:
        raise InputError(f"version {VERSION} is needed; found {content.get('version')!r}")
    if unknown := sorted(set(content) - KEYS):
        raise InputError(f"unknown key {unknown[0]!r}")
    method, learned = content.get("calibrator"), content.get("learned")
    if method not in METHODS:
        raise InputError(f"calibrator must be one of {', '.join(METHODS)}; found {str(method)[:40]!r}")
    if not isinstance(learned, dict) or not learned:
        raise InputError("the calibrator was saved before it was fitted, or learned is no object")
    classes = learned.get("num_classes")
    if type(classes) is not int or classes < 1:
        raise InputError(f"num_classes must be a whole number above 0; found {str(classes)[:40]}")
    names = content.get("class_names")
    named = isinstance(names, list) and all(isinstance(name, str) for name in names) and len(names) == classes
    if names is not None and not named:
        raise InputError(f"class_names must be a list of {classes} names")
    if method == "vector":
        scale, bias = (vector(key, learned.get(key), classes) for key in ("scale", "bias"))
        return NumpyCalibrator(method, classes, scale, bias, tuple(names) if names else None)
    if method == "multilabel":
        temperatures = vector("temperature", learned.get("temperature"), classes)
        if temperatures.min() <= 0:
            raise InputError(f"every temperature must be above 0; found {temperatures.min()}")
        each = None if "each" not in learned else _each_label(learned["each"], classes)
        return NumpyCalibrator(method, classes, 1 / temperatures, None, tuple(names) if names else None, each)
    temperature = number("temperature", learned.get("temperature"))
    if temperature <= 0:
        raise InputError(f"temperature must be above 0; found {temperature}")
    if method == "blend":
        rule: Rule | None = _blend(learned, classes)
    else:
        rule = RULES[method](learned, classes) if method in RULES else None
    return NumpyCalibrator(method, classes, np.array(1 / temperature), None, tuple(names) if names else None, rule)


def _each_label(each: Any, labels: int) -> Rule:
    """Return the function of logits (..., L) of calibrators of two classes, one for each label or one for all."""
    if not isinstance(each, list) or len(each) not in (1, labels):
        raise InputError(f"each must be a list of 1 or {labels} calibrators")
    calibrators = [_calibrator(content) for content in each]
    if any(calibrator.num_classes != 2 or calibrator.method == "multilabel" for calibrator in calibrators):
        raise InputError("each must hold calibrators of two classes")

    def rule(z: Array) -> Array:
        columns = []
        for label in range(labels):
            two = np.stack((np.zeros_like(z[..., label]), z[..., label]), axis=-1)
            both = calibrators[label if len(calibrators) > 1 else 0]._rescaled(two)
            columns.append(both[..., 1] - both[..., 0])
        return np.stack(columns, axis=-1)

    return rule


def _blend(learned: Any, classes: int) -> Rule:
    """Return the function from logits to the logarithm of the weighted mean of the probabilities of calibrators."""
    parts = learned.get("parts")
    if not isinstance(parts, list) or not parts:
        raise InputError("parts must be a list of calibrators")
    weights, calibrators = (
        vector("weights", learned.get("weights"), len(parts)),
        [_calibrator(content) for content in parts],
    )
    if weights.min() <= 0 or abs(weights.sum() - 1) > 1e-6:
        raise InputError("weights must be above 0 and have the sum 1")
    if any(
        calibrator.num_classes != classes or calibrator.method in ("multilabel", "blend") for calibrator in calibrators
    ):
        raise InputError(f"parts must hold calibrators of {classes} classes")

    def rule(z: Array) -> Array:
        mixed = np.zeros(z.shape)
        for weight, calibrator in zip(weights, calibrators, strict=True):
            calibrated = calibrator._rescaled(z).astype(np.float64)
            exps = np.exp(calibrated - calibrated.max(axis=-1, keepdims=True))
            mixed += weight * exps / exps.sum(axis=-1, keepdims=True)
        return np.asarray(np.log(np.maximum(mixed, np.finfo(np.float64).tiny)))

    return rule
