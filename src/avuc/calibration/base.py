"""The base class of calibrators: fit and transform, parameters as in scikit-learn, and a strict JSON format."""

from __future__ import annotations

import inspect
import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from avuc.calibration.estimator import ClassifierMethods
from avuc.calibration.inputs import are_numbers, as_logits, in_blocks, refuse_not_logits
from avuc.calibration.layouts import ClassesLast, fit_rows
from avuc.calibration.scaled_logits import limited_threads
from avuc.core.arrays import as_tensor
from avuc.core.atomic import write_text
from avuc.core.display import html_table
from avuc.core.errors import InputError
from avuc.core.files import read_text
from avuc.core.tasks import IGNORE_INDEX, find_layout

FORMAT = "avuc-calibrator"
VERSION = 1
# two numbers for each of a million classes take less
MOST_BYTES = 1 << 26
Array = np.ndarray[Any, np.dtype[Any]]


class CalibrationWarning(UserWarning):
    """A fit succeeded, but its result needs a look before it is used."""


class Calibrator(ClassifierMethods, ABC):
    """Base class: `fit(logits, labels)` learns from held-out data, `transform(logits)` returns calibrated logits.

    Constructor arguments are stored unchanged. Attributes that a fit learns end with an underscore. A subclass defines
    `_fit`, `_apply`, `_check_params`, its `name` and the attributes it learns (`learned`).
    """

    # every calibrator by its name, `CALIBRATORS`; the package sets it, because this file cannot import the others
    calibrators: ClassVar[dict[str, type[Calibrator]]] = {}
    name: ClassVar[str]
    # learned attribute without its underscore -> its type in JSON: "number", "whole", "flag", "vector", "curve" or
    # "calibrators"
    learned: ClassVar[dict[str, str]]
    # learned attributes that can be None, and are then not in the JSON
    optional: ClassVar[tuple[str, ...]] = ()

    # whether its logits are of independent labels (`MultiLabelCalibrator`), not of classes of which one is right
    multilabel: ClassVar[bool] = False

    num_classes_: int
    temperature_: float
    curve_: tuple[Array, Array]
    at_bound_: bool
    # parameters that files of earlier versions do not have, with the value that these files mean
    later_params: ClassVar[dict[str, Any]] = {}
    # names of the classes in the order of the logits, if they are known; set after a fit
    class_names_: tuple[str, ...] | None = None

    @property
    def ece_allowance(self) -> float:
        """Rise of ECE that is intended; `check_calibrator` does not count it against the calibrator."""
        return 0.0

    def fit(
        self,
        logits: Any,
        labels: Any,
        sample_weight: Any = None,
        *,
        class_dim: int | None = None,
        ignore_index: int | None = IGNORE_INDEX,
    ) -> Self:
        """Learn from data that the network was not trained on, and return this calibrator.

        Args:
            logits: (N, C); dense (N, C, *spatial); or binary, of class 1, (N,) or (N, 1). S posterior samples are a
                dimension in front, (S, N, C). List, NumPy array or tensor.
            labels: (N,) or (N, *spatial) class numbers.
            sample_weight: (N,) weights of the rows; a weight of 2 is the same as giving the row twice. Default None:
                all rows count the same.
            class_dim: dimension of the classes in `logits`. Default None: the last one for (N, C) and (S, N, C), else
                the one after N.
            ignore_index: rows with this label are left out (default −100); None: no row is.
        """
        self._check_params()
        rows = fit_rows(logits, labels, sample_weight, class_dim=class_dim, ignore_index=ignore_index)
        weights = () if rows.weights is None else (rows.weights,)
        with torch.no_grad(), limited_threads(rows.logits):
            self._fit(rows.logits, rows.labels, *weights)
        self.class_names_ = None
        return self

    @abstractmethod
    def _fit(self, logits: Any, labels: Any, sample_weight: Any = None) -> None:
        """Set every learned attribute; the arguments are not checked yet."""

    @abstractmethod
    def _apply(self, logits: Tensor) -> Tensor:
        """Return calibrated logits of a float tensor with the right number of classes."""

    def transform(self, logits: Any, *, class_dim: int | None = None) -> Any:
        """Return calibrated logits of the same shape and type (array or tensor); half precision becomes float32.

        With posterior samples, the logits of each sample are calibrated, before softmax and mean. Finite logits give
        finite results: if a row would overflow, it is shifted so that its largest logit is 0, which changes no
        probability.

        Args:
            logits: (N, C) or (S, N, C), with as many classes as in the fit; dense (N, C, *spatial); or binary, (N,) or
                (N, 1), if there are two classes.
            class_dim: dimension of the classes in `logits`. Default None: the last of up to three dimensions, else 1.
        """
        if not hasattr(self, "temperature_"):
            raise InputError(f"this {type(self).__name__} is not fitted; call fit(logits, labels) or load() first")
        on_host = not (isinstance(logits, Tensor) and logits.is_cuda)
        scores = as_tensor(logits, "logits")
        layout = None
        if scores.ndim not in (2, 3) or class_dim is not None or scores.shape[-1] != self.num_classes_:
            layout = ClassesLast.of(scores, self.num_classes_, class_dim, f"this {type(self).__name__}")
            scores = layout.logits
        tensor = as_logits(scores.flatten(0, -2) if scores.ndim > 3 else scores, peek=on_host)
        if on_host:  # a CUDA tensor would have to wait for its values
            refuse_not_logits(tensor.detach())
        calibrated = in_blocks(self._apply, tensor)
        if layout is not None:
            calibrated = layout.back(calibrated.reshape(scores.shape))
        return calibrated if isinstance(logits, Tensor) else calibrated.numpy()

    def fit_transform(self, logits: Any, labels: Any, sample_weight: Any = None, **layout: Any) -> Any:
        """Call `fit`, and return `transform` of the same logits; `layout` is class_dim and ignore_index."""
        fitted = self.fit(logits, labels, sample_weight, **layout)
        at = layout.get("class_dim")
        return fitted.transform(logits, class_dim=self._classes_at(logits, labels) if at is None else at)

    def _classes_at(self, logits: Any, labels: Any) -> int | None:
        """Return the dimension of the classes that `fit` found; `transform` cannot know it without labels."""
        scores, targets = (tuple(as_tensor(values, "logits").shape) for values in (logits, labels))
        return None if len(scores) < 3 else find_layout(scores, targets, class_dim=None, draws=None).axis

    # ---- parameters, as scikit-learn expects them

    @classmethod
    def _param_names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor; `deep` exists for scikit-learn."""
        return {name: getattr(self, name) for name in self._param_names()}

    def set_params(self, **params: Any) -> Self:
        """Change arguments of the constructor; learned attributes stay until the next fit."""
        unknown = sorted(set(params) - set(self._param_names()))
        if unknown:
            raise InputError(f"{type(self).__name__} has no parameter {unknown[0]!r}; it has {self._param_names()}")
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self).__init__).parameters
        changed = (f"{k}={v!r}" for k, v in self.get_params().items() if v != defaults[k].default)
        return f"{type(self).__name__}({', '.join(changed)})"

    def _repr_html_(self) -> str:
        rows = [*self.get_params().items()]
        if hasattr(self, "temperature_"):
            rows += [(f"{key}_", getattr(self, f"{key}_")) for key in self.learned]
        # arrays can be long, and a curve is a picture: avuc.plot.temperature_curve
        short_rows = [(name, value) for name, value in rows if not isinstance(value, np.ndarray) and name != "curve_"]
        return html_table(repr(self) + ("" if hasattr(self, "temperature_") else ", not fitted"), ("", ""), short_rows)

    # ---- JSON

    def to_json(self) -> str:
        """Return the parameters and the learned attributes as JSON; numbers are restored exactly."""
        learned = {}
        if hasattr(self, "temperature_"):
            for key in self.learned:
                value = getattr(self, f"{key}_")
                if isinstance(value, list):
                    value = [json.loads(part.to_json()) for part in value]
                if isinstance(value, tuple):
                    value = [part.tolist() for part in value]
                learned[key] = value.tolist() if isinstance(value, np.ndarray) else value
            learned = {key: value for key, value in learned.items() if value is not None}
        content = {
            "format": FORMAT,
            "version": VERSION,
            "calibrator": self.name,
            "params": self.get_params(),
            "learned": learned,
        }
        if self.class_names_ is not None:
            content["class_names"] = list(self.class_names_)
        return json.dumps(content, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the calibrator that `to_json` wrote. `Calibrator.from_json` reads any, a subclass only its own."""
        content = _parsed(text)
        kind = cls.calibrators.get(content["calibrator"])
        if kind is None or not issubclass(kind, cls):
            expected = [name for name, other in cls.calibrators.items() if issubclass(other, cls)]
            raise InputError(f"calibrator JSON: calibrator must be one of {expected}; found {content['calibrator']!r}")
        params, learned = kind.later_params | content["params"], content["learned"]
        _same_keys("params", params, kind._param_names())
        calibrator = kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in params.items()})
        calibrator._check_params()
        if learned:
            _same_keys("learned", dict.fromkeys(kind.optional) | learned, list(kind.learned))
            for key, shape in kind.learned.items():
                setattr(calibrator, f"{key}_", _value(key, learned[key], shape) if key in learned else None)
            calibrator._check_learned()
            calibrator.class_names_ = _names(content.get("class_names"), calibrator.num_classes_)
        return calibrator

    def save(self, path: str | Path) -> None:
        """Write `to_json` to a file; the file is complete or absent."""
        write_text(path, self.to_json() + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file that `save` wrote."""
        try:
            text = read_text(path, MOST_BYTES)
        except OSError as error:
            raise InputError(f"{path}: cannot read ({error.strerror})") from error
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path}: this is no text; name a JSON file that avuc calibrate or save() wrote"
            ) from error
        try:
            return cls.from_json(text)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error

    @abstractmethod
    def _check_params(self) -> None:
        """Raise InputError for parameters of the wrong type or range."""

    def _check_learned(self) -> None:
        if not self.temperature_ > 0:
            raise InputError(f"calibrator JSON: temperature must be above 0; found {self.temperature_}")
        if self.num_classes_ < 1:
            raise InputError(f"calibrator JSON: num_classes must be at least 1; found {self.num_classes_}")
        temperatures, losses = self.curve_
        if len(temperatures) != len(losses):
            raise InputError("calibrator JSON: curve must hold as many temperatures as losses")


def _parsed(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"calibrator JSON: not valid JSON ({error}); name a file that save() wrote") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f'calibrator JSON: not a calibrator (no "format": "{FORMAT}"); name a file that save() wrote')
    named = {"class_names": None} | content  # calibrators of unnamed classes have none
    _same_keys("the file", named, ["format", "version", "calibrator", "params", "learned", "class_names"])
    if content["version"] != VERSION:
        raise InputError(f"calibrator JSON: version {VERSION} is needed; found {content['version']!r}")
    for key in ("params", "learned"):
        if not isinstance(content[key], dict):
            raise InputError(f"calibrator JSON: {key} must be an object; found {type(content[key]).__name__}")
    if not isinstance(content["calibrator"], str):
        raise InputError(f"calibrator JSON: calibrator must be a name; found {content['calibrator']!r}")
    return content


def _same_keys(where: str, content: dict[str, Any], expected: list[str]) -> None:
    missing, unknown = sorted(set(expected) - set(content)), sorted(set(content) - set(expected))
    if missing or unknown:
        raise InputError(f"calibrator JSON: {where} must hold {expected}; missing {missing}, unknown {unknown}")


def _names(value: Any, num_classes: int) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value) or len(value) != num_classes:
        raise InputError(f"calibrator JSON: class_names must be a list of {num_classes} names, one for each class")
    return tuple(value)


def _number(key: str, value: Any) -> float:
    if not are_numbers(value):
        raise InputError(f"calibrator JSON: {key} must be a finite number; found {repr(value)[:40]}")
    return float(value)


def _vector(key: str, value: Any) -> Array:
    if not isinstance(value, list):
        raise InputError(f"calibrator JSON: {key} must be a list of numbers; found {type(value).__name__}")
    if set(map(type, value)) == {float} and np.isfinite(fast := np.array(value)).all():
        return fast
    return np.array([_number(key, entry) for entry in value], dtype=np.float64)


def _value(key: str, value: Any, shape: str) -> Any:
    if shape == "flag" and not isinstance(value, bool):
        raise InputError(f"calibrator JSON: {key} must be true or false; found {value!r}")
    if shape == "whole" and (isinstance(value, bool) or not isinstance(value, int)):
        raise InputError(f"calibrator JSON: {key} must be a whole number; found {value!r}")
    if shape == "curve" and not (isinstance(value, list) and len(value) == 2):
        raise InputError(f"calibrator JSON: {key} must be two lists, temperatures and losses")
    if shape == "calibrators":
        if not isinstance(value, list) or not value:
            raise InputError(f"calibrator JSON: {key} must be a list of calibrators; found {repr(value)[:40]}")
        return [Calibrator.from_json(json.dumps(item)) for item in value]
    if shape == "curve":
        return _vector(key, value[0]), _vector(key, value[1])
    if shape == "vector":
        return _vector(key, value)
    return _number(key, value) if shape == "number" else value
