"""`Objective(options=…)` reaches every option of every loss, and refuses all others before anything is trained."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from avuc.core.errors import InputError
from avuc.losses import AvUCLoss, DirichletHead, EUCLoss, SBECELoss, SegmentationAvULoss
from avuc.losses.euc import with_dirichlet_head
from avuc.losses.options import ELSEWHERE, MODULES, OF_OBJECTIVE, Options, defaults_of
from avuc.losses.segmentation import THRESHOLDS
from avuc.methods import Objective
from avuc.methods.objective import Kind

KINDS = get_args(Kind)
OPTIONS: dict[str, dict[str, Any]] = {
    "avuc": {"running": 0.5},
    "sb_ece": {"form": "label_binned", "bins": 7, "temperature": 0.2},
    "euc": {"evidence": "softplus"},
    "segmentation_avu": {"thresholds": [0.5, 0.9], "background": 2, "dilation": [3, 1], "opening": 1},
}


def rows(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(40, 5, generator=generator), torch.randint(5, (40,), generator=generator)


def images() -> tuple[Tensor, Tensor]:
    """Class 2 nearly everywhere, labelled and predicted, so that the region depends on the background."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.full((2, 11, 11), 2)
    labels[:, 4:7, 4:7] = 0
    logits = torch.randn(2, 3, 11, 11, generator=generator)
    logits[:, 2] += 4
    return logits, labels


def gradient(loss: Callable[[Tensor], Tensor], logits: Tensor) -> tuple[Tensor, Tensor]:
    leaf = logits.clone().requires_grad_()
    value = loss(leaf)
    return value.detach(), *torch.autograd.grad(value, leaf)


def assert_same(ours: Callable[[Tensor], Tensor], theirs: Callable[[Tensor], Tensor], logits: Tensor) -> None:
    for one, other in zip(gradient(ours, logits), gradient(theirs, logits), strict=True):
        assert torch.equal(one, other)


def objective_of(kind: str, **changes: Any) -> Objective:
    return Objective(kind, options=OPTIONS[kind], **{"warmup_epochs": 0, **changes})  # type: ignore[arg-type]


# ---- what is computed


def test_every_option_has_a_test() -> None:
    assert {kind: set(defaults_of(kind)) for kind in KINDS if defaults_of(kind)} == {
        kind: set(options) for kind, options in OPTIONS.items()
    }
    for kind, options in OPTIONS.items():
        for name, value in options.items():
            assert value != defaults_of(kind)[name]


def test_every_argument_of_a_loss_is_an_option_or_stands_elsewhere() -> None:
    """A new argument of a loss is an option without a further word, if the module keeps it under its name."""
    own = {field.name for field in fields(Objective)} - {"kind", "options"}
    assert own == set(OF_OBJECTIVE)
    for kind, module in MODULES.items():
        names = set(inspect.signature(module).parameters)
        assert set(defaults_of(kind)) == names - set(OF_OBJECTIVE) - set(ELSEWHERE)
        assert set(defaults_of(kind)) <= set(vars(module()))


@pytest.mark.parametrize("variant", ["paper", "stopgrad"])
def test_sb_ece(variant: str) -> None:
    logits, labels = rows()
    loss = objective_of("sb_ece", variant=variant).loss(100)
    module = SBECELoss(variant=variant, form="label_binned", bins=7, temperature=0.2)  # type: ignore[arg-type]
    assert_same(lambda z: loss(z, labels).avuc, lambda z: module(z, labels), logits)
    plain = Objective("sb_ece", variant=variant, warmup_epochs=0).loss(100)  # type: ignore[arg-type]
    assert not torch.equal(loss(logits, labels).avuc, plain(logits, labels).avuc)


def test_segmentation() -> None:
    logits, labels = images()
    loss = objective_of("segmentation_avu", variant="monotone").loss(100)
    module = SegmentationAvULoss(variant="monotone", thresholds=(0.5, 0.9), background=2, dilation=(3, 1), opening=1)
    assert_same(lambda z: loss(z, labels).avuc, lambda z: module(z, labels), logits)
    seen = {float(loss(logits, labels).avuc)}
    for name in OPTIONS["segmentation_avu"]:  # each option counts
        rest = {key: value for key, value in OPTIONS["segmentation_avu"].items() if key != name}
        other = Objective("segmentation_avu", variant="monotone", warmup_epochs=0, options=rest).loss(100)
        seen.add(float(other(logits, labels).avuc))
    assert len(seen) == 5


@pytest.mark.parametrize("background", [None, "none"])
def test_no_background(background: str | None) -> None:
    """TOML has no None: a recipe writes "none"."""
    logits, labels = images()
    loss = Objective("segmentation_avu", warmup_epochs=0, options={"background": background}).loss(100)
    module = SegmentationAvULoss(background=None)
    assert_same(lambda z: loss(z, labels).avuc, lambda z: module(z, labels), logits)


def test_one_threshold_and_options() -> None:
    logits, labels = images()
    loss = Objective("segmentation_avu", warmup_epochs=0, threshold=0.3, options={"opening": 1}).loss(100)
    module = SegmentationAvULoss(thresholds=[0.3], opening=1)
    assert_same(lambda z: loss(z, labels).avuc, lambda z: module(z, labels), logits)


@pytest.mark.parametrize("evidence", ["exp", "softplus", "relu"])
def test_evidence_is_that_of_the_head(evidence: Any) -> None:
    """The network's outputs become log α in its head, and the loss takes log α."""
    outputs, labels = rows()
    objective = Objective("euc", variant="monotone", warmup_epochs=3, options={"evidence": evidence})
    net = with_dirichlet_head(nn.Identity(), objective.options["evidence"])
    loss, module = objective.loss(100), EUCLoss(epochs=3, variant="monotone", evidence=evidence)
    for _ in range(2):
        assert_same(lambda z: loss(net(z), labels).avuc, lambda z: module(z, labels), outputs)
        loss.epoch_end()
        module.epoch_end()


def test_heads() -> None:
    plain, own = nn.Linear(3, 2), nn.Sequential(nn.Linear(3, 2), DirichletHead("softplus"))
    assert with_dirichlet_head(plain)[1].evidence == "exp"  # type: ignore[index]
    assert with_dirichlet_head(plain, "relu")[1].evidence == "relu"  # type: ignore[index]
    assert with_dirichlet_head(own) is with_dirichlet_head(own, "softplus") is own
    with pytest.raises(
        InputError, match=r"DirichletHead\('softplus'\), and the objective's options say evidence 'exp'"
    ):
        with_dirichlet_head(own, "exp")


def test_running_quadrants() -> None:
    loss = objective_of("avuc", threshold=0.7, variant="monotone").loss(100)
    module = AvUCLoss(beta=1.0, threshold=0.7, variant="monotone", running=0.5)
    for seed in range(3):
        logits, labels = rows(seed)
        assert_same(lambda z: loss(z, labels).avuc, lambda z: module(z, labels), logits)  # noqa: B023
    again = objective_of("avuc", threshold=0.7, variant="monotone").loss(100)
    again.load_state_dict(loss.state_dict())
    assert torch.equal(again(*rows(9)).avuc, loss(*rows(9)).avuc)


# ---- as data


@pytest.mark.parametrize("kind", OPTIONS)
def test_immutable_hashable_and_picklable(kind: str) -> None:
    given = copy.deepcopy(OPTIONS[kind])
    objective = Objective(kind, options=given)  # type: ignore[arg-type]
    given.clear()
    assert set(objective.options) == set(OPTIONS[kind])
    with pytest.raises(TypeError):
        objective.options["bins"] = 3  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        objective.options = {}  # type: ignore[misc]
    for other in (pickle.loads(pickle.dumps(objective)), copy.deepcopy(objective), replace(objective)):
        assert other == objective
        assert hash(other) == hash(objective)
        assert repr(other) == repr(objective)
    assert objective != Objective(kind)  # type: ignore[arg-type]
    backwards = {name: objective.options[name] for name in reversed(list(objective.options))}
    assert replace(objective, options=backwards).identity() == objective.identity()


def test_one_form() -> None:
    """Equal options are equal objectives, however they are written; those at their default make no difference."""
    tuples = Objective("segmentation_avu", options={"thresholds": (0.1, 1.0), "dilation": (1, 3, 3)})
    lists = Objective(
        "segmentation_avu", options={"dilation": [np.int64(1), 3, 3], "thresholds": [torch.tensor(0.1).double(), 1]}
    )
    assert dict(tuples.options) == {"thresholds": (0.1, 1.0), "dilation": (1, 3, 3)}
    assert repr(Objective("sb_ece", options={"temperature": 1}).options) == "{'temperature': 1.0}"
    assert lists.options["dilation"] == (1, 3, 3)
    assert all(type(value) is float for value in lists.options["thresholds"])
    for kind in OPTIONS:
        assert Objective(kind, options=defaults_of(kind)) == Objective(kind)  # type: ignore[arg-type]
    assert Objective("segmentation_avu", options={"thresholds": list(THRESHOLDS)}).options == {}


@pytest.mark.parametrize("kind", KINDS)
def test_without_options_the_identity_is_that_of_older_versions(kind: str) -> None:
    objective = Objective(kind, variant="paper")  # type: ignore[arg-type]
    names = ["kind", "beta", "variant", "uncertainty", "warmup_epochs", "threshold", "points", "kl_weight"]
    values = [repr(kind), "3.0", "'paper'", "'entropy'", "5", "None", "21", "1.0"]
    assert objective.identity() == {**dict(zip(names, values, strict=True)), "kl_gradient": "True"}
    again = Objective(kind, variant="paper", options={})  # type: ignore[arg-type]
    assert again.identity() == objective.identity()
    if kind in OPTIONS:
        other = Objective(kind, variant="paper", options=OPTIONS[kind])  # type: ignore[arg-type]
        assert {**other.identity(), "options": ""} == {**objective.identity(), "options": ""}
        assert other.identity()["options"] == repr(other.options)


def test_an_objective_that_an_older_version_pickled() -> None:
    objective = Objective("avuc")
    state = {name: value for name, value in vars(objective).items() if name != "options"}
    old = Objective.__new__(Objective)
    old.__dict__.update(state)
    assert old == objective
    assert pickle.loads(pickle.dumps(old)).options == Options()


# ---- mistakes


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("sb_ece", {"bin": 3}, "sb_ece has no option 'bin'; its options are form, bins, temperature"),
        ("euc", {"bins": 3}, "euc has no option 'bins'; its options are evidence"),
        ("avuc", {"kappa": 3}, "avuc has no option 'kappa'; its options are running"),
        (
            "segmentation_avu",
            {"width": 3},
            "no option 'width'; its options are thresholds, background, dilation, opening",
        ),
        ("sb_ece", {3: 3}, "sb_ece has no option 3"),
        ("plain", {"bins": 3}, "plain has no option 'bins'; it has no options"),
        ("ua_clm", {"bins": 3}, "ua_clm has no option 'bins'; it has no options"),
        ("auavuc", {"bins": 3}, "auavuc has no option 'bins'; it has no options"),
        ("confidence_penalty", {"bins": 3}, "confidence_penalty has no option 'bins'; it has no options"),
        ("sb_ece", {"beta": 3}, "'beta' is no option of sb_ece; give Objective(beta=…), objective.beta in a recipe"),
        ("sb_ece", {"variant": "paper"}, "give Objective(variant=…)"),
        ("segmentation_avu", {"threshold": 0.3}, "give Objective(threshold=…)"),
        ("auavuc", {"points": 0}, "give Objective(points=…)"),
        ("avuc", {"warmup_epochs": 3}, "give Objective(warmup_epochs=…)"),
        ("avuc", {"warmup_steps": 3}, "the warm-up has epochs: Objective(warmup_epochs=…)"),
        ("euc", {"epochs": 3}, "the epochs over which λ rises are Objective(warmup_epochs=…)"),
        ("sb_ece", {"ignore_index": 255}, "data.ignore_index"),
        ("sb_ece", {"class_dim": -1}, "net.class_dim"),
        ("sb_ece", {"task": "binary"}, "follows from the shapes"),
        ("sb_ece", {"group": False}, "shares a batch among all its processes"),
        ("sb_ece", [("bins", 3)], "options must be names with values, like {'bins': 20}; found [('bins', 3)]"),
        ("sb_ece", None, "options must be names with values"),
        ("sb_ece", {"form": "binary"}, "options of sb_ece: sb_ece: form must be one of binned, label_binned; found 'b"),
        ("sb_ece", {"form": 3}, "form must be one of"),
        ("sb_ece", {"form": ["binned"]}, "form must be one of"),
        ("sb_ece", {"bins": 2.5}, "bins must be a whole number; found 2.5"),
        ("sb_ece", {"bins": "20"}, "bins must be a whole number; found '20'"),
        ("sb_ece", {"bins": True}, "bins must be a whole number; found True"),
        ("sb_ece", {"bins": 0}, "bins must be at least 1"),
        ("sb_ece", {"bins": None}, "bins must be a whole number; found None"),
        ("sb_ece", {"temperature": 0}, "temperature must be above 0"),
        ("sb_ece", {"temperature": "warm"}, "temperature must be a number"),
        ("euc", {"evidence": "tanh"}, "options of euc: euc: evidence must be one of relu, exp, softplus; found 'tanh'"),
        ("avuc", {"running": 1.0}, "running is a decay below 1"),
        ("avuc", {"running": "x"}, "running must be a number"),
        ("segmentation_avu", {"thresholds": []}, "thresholds must be a sequence"),
        ("segmentation_avu", {"thresholds": 0.3}, "thresholds must be a sequence"),
        ("segmentation_avu", {"thresholds": ["x"]}, "threshold must be a number; found 'x'"),
        ("segmentation_avu", {"background": "sky"}, "background must be a class, or None if every voxel counts"),
        ("segmentation_avu", {"background": 1.0}, "background must be a class"),
        ("segmentation_avu", {"background": True}, "background must be a class"),
        ("segmentation_avu", {"dilation": 4}, "dilation must be odd"),
        ("segmentation_avu", {"dilation": [1, 4]}, "dilation must be odd"),
        ("segmentation_avu", {"dilation": [5]}, "dilation has one width, or one for each of 2 or 3 dimensions"),
        ("segmentation_avu", {"dilation": {"x": 5}}, "dilation must be a whole number"),
        ("segmentation_avu", {"dilation": None}, "dilation must be a whole number; found None"),
        ("segmentation_avu", {"opening": "3"}, "opening must be a whole number; found '3'"),
        ("segmentation_avu", {"opening": 0}, "opening must be at least 1"),
        ("segmentation_avu", {"opening": [1, [3]]}, "opening must be a whole number; found [3]"),
    ],
)
def test_mistakes(kind: Any, options: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        Objective(kind, options=options)
    assert str(caught.value).startswith("objective: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_threshold_beside_thresholds() -> None:
    with pytest.raises(InputError, match="threshold or the option thresholds, not both"):
        Objective("segmentation_avu", threshold=0.3, options={"thresholds": [0.1]})


def test_widths_of_another_number_of_dimensions_are_refused_in_the_warm_up() -> None:
    loss = Objective("segmentation_avu", warmup_epochs=5, options={"dilation": [1, 5, 5]}).loss(100)
    with pytest.raises(InputError, match="dilation needs 2 widths"):
        loss(*images())


@pytest.mark.parametrize("kind", ["plain", "confidence_penalty", "avuc", "auavuc"])
def test_words_are_checked_for_every_kind(kind: Any) -> None:
    with pytest.raises(
        InputError, match="objective: variant must be one of paper, stopgrad, monotone, soft; found 'bi"
    ):
        Objective(kind, variant="binned")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="objective: uncertainty must be one of"):
        Objective(kind, uncertainty="variance")  # type: ignore[arg-type]
