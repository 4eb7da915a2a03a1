"""Examples that two parts of a study's own data share: nobody is to be judged by what was learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from avuc import study
from avuc.core.errors import InputError
from avuc.data import Dataset
from avuc.data.tensors import TensorData
from avuc.methods import Vanilla
from avuc.study.trial.overlap import MOST_SOUGHT, check_overlap
from avuc.train import TrainSettings

NUMBERS = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
LABELS = (NUMBERS[:, 0] > 0).long()


def part(inputs: Any) -> TensorData:
    first = inputs if isinstance(inputs, Tensor) else next(iter(inputs.values()))
    return TensorData(inputs, torch.zeros(len(first), dtype=torch.int64), 2)


def share(training: Tensor, test: Tensor) -> float:
    """Loops instead of hashes."""
    return sum(any(torch.equal(one, other) for other in training) for one in test) / len(test)


def run(folder: Path, data: Any) -> None:
    study.run(
        methods={"V": Vanilla()},
        data=data,
        net=lambda num_classes: nn.Linear(4, num_classes),
        train=TrainSettings(epochs=1, batch_size=50, milestones=(), factors=()),
        out=folder,
        samples=1,
        device="cpu",
        progress=False,
    ).close()


def test_the_same_examples_for_every_split_are_refused() -> None:
    whole = part(NUMBERS)
    with pytest.raises(InputError, match="all test examples are training or held-out examples, too"):
        check_overlap("mine:load", part(NUMBERS[:200]), part(NUMBERS[200:]), whole)
    with pytest.raises(InputError, match="all test examples are training or held-out"):  # val is test
        check_overlap("mine:load", part(NUMBERS[:200]), part(NUMBERS[200:]), part(NUMBERS[200:]))
    with pytest.raises(InputError, match="all held-out examples are training examples, too"):
        check_overlap("mine:load", part(NUMBERS[:200]), part(NUMBERS[:100]), part(NUMBERS[200:]))


@pytest.mark.parametrize("common", [0, 1, 2, 30, 99])
def test_some_common_examples_give_a_line(common: int, capsys: pytest.CaptureFixture[str]) -> None:
    training, test = NUMBERS[:200], NUMBERS[200 - common : 300 - common]
    check_overlap("mine:load", part(training), part(training + 9), part(test))
    said = capsys.readouterr().err
    assert share(training, test) == common / 100
    assert (f"{common}% of the test examples have the inputs of training or held-out" in said) == (common > 1)


def test_few_values_are_equal_by_chance(capsys: pytest.CaptureFixture[str]) -> None:
    bits = torch.randint(2, (300, 3), generator=torch.Generator().manual_seed(1))
    check_overlap("mine:load", part(bits[:200]), part(bits[200:250]), part(bits[250:]))
    assert "100% of the test examples" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float64, torch.int64])
def test_any_inputs(dtype: torch.dtype, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = (torch.arange(90)[:, None] >> torch.arange(7) & 1).to(dtype)
    named = {"ids": numbers, "mask": torch.ones(90)}
    parts = [part({name: value[start : start + 30] for name, value in named.items()}) for start in (0, 30, 60)]
    check_overlap("mine:load", *parts)
    assert not capsys.readouterr().err
    with pytest.raises(InputError, match="all test"):
        check_overlap("mine:load", parts[0], parts[1], parts[1])


def test_images_and_large_sets() -> None:
    numbers = torch.arange(3 * MOST_SOUGHT)
    images = torch.stack([numbers % 256, numbers // 256], 1).byte().view(-1, 1, 2, 1)
    data = Dataset(images, torch.zeros(len(images), dtype=torch.int64), 2)
    first, second, third = (data.subset(range(k * MOST_SOUGHT, (k + 1) * MOST_SOUGHT)) for k in range(3))
    check_overlap("mine:load", first, second, third)
    with pytest.raises(InputError, match="all test"):
        check_overlap("mine:load", first, second, data.subset(range(2 * MOST_SOUGHT)))


def test_a_study_looks(tmp_path: Path) -> None:
    def ignores(split: str) -> tuple[Tensor, Tensor]:
        return NUMBERS, LABELS

    def halves(split: str) -> tuple[Tensor, Tensor]:
        rows = slice(200) if split == "train" else slice(200, None)
        return NUMBERS[rows], LABELS[rows]

    with pytest.raises(InputError, match=r"all test examples are training or held-out examples"):
        run(tmp_path / "a", ignores)
    with pytest.raises(InputError, match=r"all test examples are training or held-out examples"):
        run(tmp_path / "b", {split: halves(split) for split in ("train", "validation", "test")})
    run(tmp_path / "c", halves)
