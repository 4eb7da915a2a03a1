"""JSON files of conformal and selective classifiers: strict, without pickle, numbers restored exactly."""

from __future__ import annotations

import inspect
import json
import math
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Self

from avuc.core.atomic import write_text
from avuc.core.errors import InputError
from avuc.core.files import read_text

FORMAT = "avuc-guarantee"
VERSION = 1


class Saved(ABC):
    """Parameters of the constructor, learned attributes, and JSON. A subclass has a `kind` and checks both."""

    kind: ClassVar[str]
    # attributes that a fit sets, without their underscore
    learned: ClassVar[tuple[str, ...]]
    # learned attributes that a file has only if they are not None
    optional: ClassVar[tuple[str, ...]] = ()

    # names of the classes in the order of the probabilities, if they are known; set after a fit
    class_names_: tuple[str, ...] | None = None
    num_classes_: int

    @abstractmethod
    def _check_params(self) -> None:
        """Raise InputError for parameters of the wrong type or range."""

    @abstractmethod
    def _restore(self, learned: dict[str, Any]) -> None:
        """Set the learned attributes from JSON values; raise InputError if they do not fit together."""

    @property
    def is_fitted(self) -> bool:
        """Whether `fit` was called, or a fitted classifier was loaded."""
        return hasattr(self, "num_classes_")

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor; `deep` exists for scikit-learn."""
        names = inspect.signature(type(self).__init__).parameters
        return {name: getattr(self, name) for name in names if name != "self"}

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self).__init__).parameters
        changed = (f"{k}={v!r}" for k, v in self.get_params().items() if v != defaults[k].default)
        return f"{type(self).__name__}({', '.join(changed)})"

    def to_json(self) -> str:
        """Return the parameters and what the fit learned as JSON."""
        content = {"format": FORMAT, "version": VERSION, "kind": self.kind, "params": self.get_params(), "learned": {}}
        if self.is_fitted:
            values = {key: _plain(getattr(self, f"{key}_")) for key in self.learned}
            content["learned"] = {k: v for k, v in values.items() if k not in self.optional or v is not None}
        return json.dumps(content, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the object that `to_json` wrote.

        Args:
            text: the JSON text.
        """
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"not valid JSON ({error}); write it again with save() or --out") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("kind") != cls.kind:
            actual_kind = (
                content.get("kind", content.get("format")) if isinstance(content, dict) else type(content).__name__
            )
            what = f" (it is {actual_kind!r})" if actual_kind else ""
            raise InputError(f"not a {cls.kind} classifier{what}; name a file that save() or --out wrote")
        if content.get("version") != VERSION:
            raise InputError(f"version {VERSION} is needed, found {content.get('version')!r}; fit it again")
        params, learned = content.get("params"), content.get("learned")
        expected = set(inspect.signature(cls.__init__).parameters) - {"self"}
        if not isinstance(params, dict) or set(params) != expected:
            raise InputError(f"params must hold {sorted(expected)}; fit it again")
        restored = cls(**params)
        restored._check_params()
        if learned:
            if not isinstance(learned, dict) or set(learned) | set(cls.optional) != set(cls.learned):
                raise InputError(f"learned must hold {list(cls.learned)}; fit it again")
            classes, names = learned["num_classes"], learned["class_names"]
            if not is_whole(classes) or classes < 1:
                raise InputError(f"num_classes must be a whole number from 1, found {classes!r}; fit it again")
            named = isinstance(names, list) and all(isinstance(n, str) for n in names) and len(names) == classes
            if not (names is None or named):
                raise InputError(f"class_names must be {classes} names; fit it again")
            restored._restore(learned)
            restored.num_classes_, restored.class_names_ = classes, None if names is None else tuple(names)
        return restored

    def save(self, path: str | Path) -> None:
        """Write `to_json` to a file; the file is complete or absent.

        Args:
            path: the file.
        """
        write_text(path, self.to_json() + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file that `save` wrote.

        Args:
            path: the file.
        """
        try:
            return cls.from_json(read_text(path))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror}); check the path and permissions") from error
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: this is no text; name a JSON file that save() wrote") from error
        except InputError as error:
            raise InputError(f"{path}: {error}") from error


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number, and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number, and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    """Return a value for JSON; infinity becomes null."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and math.isinf(value) else value
