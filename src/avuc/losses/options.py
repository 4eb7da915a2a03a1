"""The options of a loss that `Objective(options=…)` sets, checked against the loss before anything is trained.

An option is an argument of the loss's module for which the objective has no argument. The module checks the values and
keeps each option as an attribute of the same name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from avuc.core.errors import InputError
from avuc.losses.euc import EUCLoss
from avuc.losses.module import AvUCLoss
from avuc.losses.sb_ece import SBECELoss
from avuc.losses.segmentation import SegmentationAvULoss
from avuc.losses.ua_clm import UACLMLoss

MODULES: dict[str, Callable[..., nn.Module]] = {
    "avuc": AvUCLoss,
    "sb_ece": SBECELoss,
    "euc": EUCLoss,
    "ua_clm": UACLMLoss,
    "segmentation_avu": SegmentationAvULoss,
}
NONE = "none"  # stands for None, which TOML cannot express
# arguments of an objective that a user may take for options
OF_OBJECTIVE = ("beta", "variant", "uncertainty", "warmup_epochs", "threshold", "points", "kl_weight", "kl_gradient")
# arguments of a loss that are not options, and what to use instead
ELSEWHERE: dict[str, str] = {
    "epochs": "the epochs over which λ rises are Objective(warmup_epochs=…), objective.warmup_epochs in a recipe",
    "warmup_steps": "the warm-up has epochs: Objective(warmup_epochs=…), objective.warmup_epochs in a recipe",
    "ignore_index": "it belongs to the data: data.ignore_index in a recipe, ignore_index in avuc.study.run",
    "class_dim": "it belongs to the network: net.class_dim in a recipe, class_dim in avuc.study.run",
    "task": "it follows from the shapes of logits and labels",
    "group": "the training shares a batch among all its processes",
}


class Options(Mapping[str, Any]):
    """A mapping that cannot be changed and has a hash, as the fields of a frozen dataclass need.

    >>> Options({"bins": 20}), hash(Options({"bins": 20})) == hash(Options({"bins": 20}))
    ({'bins': 20}, True)
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values: dict[str, Any] = dict(values or {})

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return repr(self._values)


NO_OPTIONS = Options()


def defaults_of(kind: str) -> dict[str, Any]:
    """Return the options of a kind of objective and their defaults, in the order of the loss's arguments.

    >>> defaults_of("sb_ece")
    {'form': 'binned', 'bins': 15, 'temperature': 0.01}
    """
    if kind not in MODULES:
        return {}
    defaults = {name: parameter.default for name, parameter in inspect.signature(MODULES[kind]).parameters.items()}
    if kind == "euc":  # the network has its own head, or gets one
        defaults["evidence"] = None
    return {name: value for name, value in defaults.items() if name not in (*OF_OBJECTIVE, *ELSEWHERE)}


def checked_options(kind: str, options: Any) -> Options:
    """Return the options of an objective in one form; `InputError` if the loss does not have them.

    Options at their default are left out, so that they do not make another run. None is the text "none", as in recipes.

    Args:
        kind: kind of the objective.
        options: names and values.

    >>> checked_options("segmentation_avu", {"dilation": [1, 5, 5], "background": None, "opening": 3})
    {'background': 'none', 'dilation': (1, 5, 5)}
    """
    if not isinstance(options, Mapping):
        raise InputError(f"objective: options must be names with values, like {{'bins': 20}}; found {options!r}")
    if not options:
        return NO_OPTIONS
    defaults = defaults_of(kind)
    for name in options:
        if name not in defaults:
            raise InputError(f"objective: {_unknown(kind, name, list(defaults))}")
    try:
        module = MODULES[kind](**arguments(options))
    except (InputError, TypeError, ValueError) as error:  # the latter two: a value of an unexpected type
        raise InputError(f"objective: options of {kind}: {error}") from error
    values = {name: getattr(module, name) for name in defaults if name in options}
    kept = {name: value for name, value in values.items() if value != defaults[name]}
    return Options({name: NONE if value is None else value for name, value in kept.items()})


def arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as arguments of the loss's module.

    >>> arguments(Options({"background": "none", "opening": 1}))
    {'background': None, 'opening': 1}
    """
    return {name: None if isinstance(value, str) and value == NONE else value for name, value in options.items()}


def _unknown(kind: str, name: Any, known: list[str]) -> str:
    there = f"its options are {', '.join(known)}" if known else "it has no options"
    if name in OF_OBJECTIVE:
        return f"{name!r} is no option of {kind}; give Objective({name}=…), objective.{name} in a recipe"
    if name in ELSEWHERE:
        return f"{name!r} is no option of {kind}; {ELSEWHERE[name]}"
    return f"{kind} has no option {name!r}; {there}"
