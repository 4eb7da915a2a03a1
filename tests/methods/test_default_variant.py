"""The default variant: "monotone" for AvUC, "paper" for the other kinds; identities are those of older versions."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch

from avuc import AvUCLoss, auavuc_loss, avuc_loss
from avuc.core.errors import InputError
from avuc.losses.quadrants import VARIANTS
from avuc.methods import Objective
from avuc.methods.objective import FAMILY, Kind

KINDS: tuple[Any, ...] = get_args(Kind)
OTHERS = [kind for kind in KINDS if kind != "avuc"]
# what `repr(list(objective.identity().items()))` was before the default changed
REST = (
    "('uncertainty', \"'entropy'\"), ('warmup_epochs', '5'), ('threshold', 'None'), ('points', '21'), "
    "('kl_weight', '1.0'), ('kl_gradient', 'True')]"
)


def variants(kind: str) -> list[Any]:
    return [name for name in FAMILY.get(kind, VARIANTS) if (kind, name) != ("auavuc", "soft")]


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return 3 * torch.randn(40, 5, generator=generator), torch.randint(5, (40,), generator=generator)


def test_function_module_and_objective_have_the_same_default() -> None:
    logits, labels = batch()
    expected = avuc_loss(logits, labels, 0.7, variant="monotone")
    assert avuc_loss(logits, labels, 0.7) == expected
    assert avuc_loss(logits, labels, 0.7, variant="paper") != expected
    assert AvUCLoss(beta=1.0, threshold=0.7)(logits, labels) == expected
    objective = Objective("avuc", threshold=0.7, warmup_epochs=0)
    assert objective.loss(100)(logits, labels).avuc == expected
    printed = replace(objective, variant="paper").loss(100)(logits, labels).avuc
    assert printed == avuc_loss(logits, labels, 0.7, variant="paper")
    default = Objective("avuc").variant
    for function in (avuc_loss, AvUCLoss):
        assert inspect.signature(function).parameters["variant"].default == default == "monotone"
    assert Objective("avuc").loss(100).avuc.variant == "monotone"  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", OTHERS)
def test_the_other_kinds_are_as_printed(kind: Any) -> None:
    assert Objective(kind).variant == "paper"
    assert Objective(kind) == Objective(kind, variant="paper")
    logits, labels = batch()
    if kind == "auavuc":
        term = Objective(kind, warmup_epochs=0).loss(100)(logits, labels).avuc
        assert term == auavuc_loss(logits, labels, variant="paper")


@pytest.mark.parametrize("kind", KINDS)
def test_a_default_is_a_word_like_a_given_one(kind: Any) -> None:
    objective = Objective(kind)
    given = Objective(kind, variant="monotone" if kind == "avuc" else "paper")
    assert objective == given == Objective(kind, variant=None)  # type: ignore[arg-type]
    assert isinstance(objective.variant, str)
    assert hash(objective) == hash(given)
    assert repr(objective) == repr(given)
    assert repr(objective).startswith(f"Objective(kind='{kind}', beta=3.0, variant='{given.variant}', uncertainty=")
    assert objective.identity() == given.identity()
    assert type(objective.loss(100).variant) is str


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_another_kind_has_its_own_default(kind: Any, other: Any) -> None:
    for objective in (Objective(kind), pickle.loads(pickle.dumps(Objective(kind))), copy.deepcopy(Objective(kind))):
        assert objective == Objective(kind)
        assert replace(objective) == objective
        assert replace(replace(objective, beta=2.0), kind=other) == Objective(other, beta=2.0)
    if "monotone" in variants(other):
        assert replace(Objective("avuc"), kind=other, variant="monotone").variant == "monotone"


def test_a_variant_that_was_given_stays() -> None:
    assert replace(Objective("avuc", variant="monotone"), kind="auavuc").variant == "monotone"
    assert replace(Objective(variant="paper"), kind="avuc").variant == "paper"
    given = pickle.loads(pickle.dumps(Objective(variant="paper")))
    assert replace(copy.copy(given), kind="avuc").variant == "paper"
    with pytest.raises(InputError, match="the variants of sb_ece are"):
        replace(Objective("avuc", variant="monotone"), kind="sb_ece")


@pytest.mark.parametrize("kind", KINDS)
def test_identities_are_those_of_older_versions(kind: Any) -> None:
    for variant in variants(kind):
        before = f"[('kind', \"'{kind}'\"), ('beta', '3.0'), ('variant', \"'{variant}'\"), {REST}"
        assert repr(list(Objective(kind, variant=variant).identity().items())) == before


def test_the_identity_of_the_printed_loss() -> None:
    assert repr(Objective("avuc", variant="paper").identity()) == (
        "{'kind': \"'avuc'\", 'beta': '3.0', 'variant': \"'paper'\", 'uncertainty': \"'entropy'\", "
        "'warmup_epochs': '5', 'threshold': 'None', 'points': '21', 'kl_weight': '1.0', 'kl_gradient': 'True'}"
    )
    assert repr(Objective("avuc", 1.5, "soft", "entropy", 2, options={"running": 0.5}).identity()) == (
        "{'kind': \"'avuc'\", 'beta': '1.5', 'variant': \"'soft'\", 'uncertainty': \"'entropy'\", "
        "'warmup_epochs': '2', 'threshold': 'None', 'points': '21', 'kl_weight': '1.0', 'kl_gradient': 'True', "
        "'options': \"{'running': 0.5}\"}"
    )
