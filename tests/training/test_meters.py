"""The rows that the meters of an epoch count, and what the trainer says about their sums."""

from __future__ import annotations

import math
import re
import warnings

import pytest
import torch

from avuc.methods import Ensemble, Objective, Terms, Vanilla
from avuc.train import TrainSettings, fit
from avuc.training.meters import SUMS, Meters, all_uncertain, labelled_rows

# a plain network that SGD trained with the printed loss, epoch 200 (reproduction/results/cifar10/factorial)
FAILED = {"accuracy": 0.72584, "avu": 0.27416, "uncertainty_right": 2.2289, "uncertainty_wrong": 2.2059}
THRESHOLD = 1.0556


@pytest.mark.parametrize("samples", [0, 3])
def test_labelled_rows_of_dense_logits(samples):
    """Against a loop over positions."""
    shape = (2, 4, 3, 5)  # N, C, H, W
    logits = torch.randn((samples, *shape) if samples else shape)
    labels = torch.randint(4, (2, 3, 5))
    labels[0, 1] = -100
    rows, kept = labelled_rows(logits, labels)
    expected = [logits[..., n, :, h, w] for n in range(2) for h in range(3) for w in range(5) if labels[n, h, w] >= 0]
    assert torch.equal(rows, torch.stack(expected, -2))
    assert kept.tolist() == [label for label in labels.flatten().tolist() if label >= 0]
    plain = torch.randn(5, 4), torch.randint(4, (5,))
    assert labelled_rows(*plain)[0] is plain[0]


@pytest.mark.parametrize(
    "change",
    [{"avu": 0.28}, {"avu": None}, {"uncertainty_right": 1.0}, {"uncertainty_wrong": 1.0}, {"uncertainty_wrong": None}],
)
def test_all_uncertain_needs_every_sign(change):
    assert all_uncertain(FAILED, THRESHOLD)
    assert not all_uncertain(FAILED | change, THRESHOLD)


@pytest.mark.parametrize(
    ("variant", "well", "warned"),
    [("paper", (), [5]), ("paper", (4,), [9]), ("monotone", (), []), ("paper", (4, 8), [])],
)
def test_a_training_in_which_every_prediction_stays_uncertain_is_told_once(
    variant, well, warned, train, plain_net, monkeypatch
):
    """Epochs (from 1) in `well` are not like that."""
    read, epochs = Meters.read, iter(range(1, 11))
    monkeypatch.setattr(
        Meters, "read", lambda self, ranks: read(self, ranks) | FAILED | ({"avu": 0.9} if next(epochs) in well else {})
    )
    settings = TrainSettings(epochs=10, pad=0, flip=False, batch_size=20)
    objective = Objective("avuc", threshold=THRESHOLD, variant=variant)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fit(Vanilla(), plain_net, train.subset(range(20)), objective=objective, settings=settings, progress=False)
    told = [re.match(r"AvUC as printed: in 5 epochs up to (\d+) every", str(one.message)) for one in found]
    assert [int(one[1]) for one in told] == warned


class Interrupted(Exception):
    pass


@pytest.mark.parametrize(("objective", "warned"), [({"threshold": THRESHOLD}, 5), ({"warmup_epochs": 2}, 7)])
@pytest.mark.parametrize("stops", [(), (0, 2, 3), (4,), (5, 6), (7,), tuple(range(10))])
def test_an_interrupted_training_is_warned_about_like_a_whole_one(
    objective, warned, stops, train, plain_net, monkeypatch, tmp_path
):
    """Epochs in `stops` (from 0) are the last of a process."""
    read, above = Meters.read, {"uncertainty_right": 9.0, "uncertainty_wrong": 9.0}
    monkeypatch.setattr(Meters, "read", lambda self, ranks: read(self, ranks) | FAILED | above)
    settings = TrainSettings(epochs=10, pad=0, flip=False, batch_size=20, checkpoint_seconds=0)

    def run(last):
        def stop(epoch, figures):
            if epoch == last:
                raise Interrupted

        fit(
            Ensemble(2),
            plain_net,
            train.subset(range(20)),
            objective=Objective("avuc", variant="paper", **objective),
            settings=settings,
            directory=tmp_path,
            progress=False,
            on_epoch=stop,
        )

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for last in stops:
            with pytest.raises(Interrupted):
                run(last)
        run(None)
    lines = [re.match(r"AvUC as printed: in 5 epochs up to (\d+) every", str(one.message)) for one in caught]
    assert [int(line[1]) for line in lines if line] == [warned, warned]  # once for each model


@pytest.mark.parametrize("ignored", [0, 3, 12])
def test_ignored_labels_are_no_mistakes(ignored: int) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(12, 4, generator=generator), torch.randint(4, (12,), generator=generator)
    labels[:ignored] = -100
    meters, zero = Meters(torch.device("cpu"), "entropy"), torch.zeros(())
    meters.threshold.fill_(1.0)
    meters.add(logits, labels, Terms(zero + 2, zero, zero, zero + 2), zero)
    expected = dict.fromkeys(SUMS, 0.0) | {"steps": 1.0}
    for row, label in zip(logits.double().softmax(1), labels, strict=True):
        if label == -100:
            continue
        u, right = -sum(float(p) * math.log(p) for p in row), bool(row.argmax() == label)
        expected["rows"] += 1
        expected["judged"] += 1
        expected["nll"] += 2
        expected["total"] += 2
        expected["right"] += right
        expected["u_right" if right else "u_wrong"] += u
        expected["good"] += right == (u <= 1.0)
    assert dict(zip(SUMS, meters.sums.tolist(), strict=True)) == pytest.approx(expected, rel=1e-6)
