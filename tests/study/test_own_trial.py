"""What is found before anything is trained: own data, networks and shifts that would give wrong figures later."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from avuc.core.errors import InputError
from avuc.methods import Ensemble, Vanilla
from avuc.study import run
from avuc.study.data.own import forget, load_own
from avuc.study.own.code import register
from avuc.study.recipe.sections import DataConfig
from avuc.study.trial import run as trial
from avuc.train import TrainSettings

TRAIN = TrainSettings(epochs=1, batch_size=20, milestones=(), factors=(), pad=0, flip=False)
NUMBERS = torch.arange(180.0).view(60, 3).remainder(7.0) / 7 + torch.arange(60.0)[:, None] / 60
LABELS = torch.arange(60) % 3


def small(out, **changes):
    """Run a study of 60 rows; the default parts are fine."""
    given = {
        "methods": {"V": Vanilla()},
        "data": {"train": (NUMBERS, LABELS), "test": (NUMBERS[:30] + 0.5, LABELS[:30])},
        "net": lambda num_classes: nn.Linear(3, num_classes),
        "train": TRAIN,
        "validation": 20,
    }
    return run(out=out, **{**given, "samples": 1, "device": "cpu", "progress": False, **changes})


def refused(out, message, **changes):
    """Expect one line before anything is trained."""
    with pytest.raises(InputError, match=message) as raised:
        small(out, **changes)
    assert "\n" not in str(raised.value)
    assert not (out / "models").exists()


def test_a_shift_that_cannot_be_repeated(tmp_path):
    """Its test set would differ between methods, and after an interruption."""
    rng = np.random.default_rng(0)

    def wind(batch, severity):
        return batch + severity * torch.from_numpy(rng.normal(size=tuple(batch.shape))).float()

    refused(tmp_path, "study.shifts: object:wind returns something else if it is called again", shifts=[wind])


TABLE = torch.linspace(0, 1, 16)


def fits_few(batch, severity):
    return batch + severity * TABLE[: len(batch), None]


def test_a_shift_that_fails_on_large_batches(tmp_path, monkeypatch):
    message = r"study.shifts: .*:fits_few failed: RuntimeError: .*; it failed on 30 examples and not on 8"
    refused(tmp_path / "numbers", message, shifts=[fits_few])
    sizes = []
    monkeypatch.setattr(trial, "MOST_SECONDS", 0.3)

    def slow(batch, severity):
        time.sleep(0.01 * len(batch))
        sizes.append(len(batch))
        return batch + severity

    small(tmp_path / "slow", shifts=[slow], severities=[5]).close()
    assert sizes[:2] == [8, 8]
    assert 8 < sizes[2] <= 30  # as many as 0.3 seconds allow; the study itself shifts all 30


def test_a_shift_that_fails_on_many_sentences_or_images(tmp_path):
    def encode(texts):
        return torch.tensor([[float(len(text))] for text in texts])

    def few_sentences(texts, severity):
        return [f"{text} {TABLE[row]:.1f}" for row, text in enumerate(texts)]

    texts = [f"one more sentence{'s' * number}" for number in range(60)]
    refused(
        tmp_path / "sentences",
        "few_sentences failed: IndexError: .*; it failed on 20 examples and not on 8",
        data={"train": (texts[:40], LABELS[:40]), "test": (texts[40:], LABELS[40:])},
        net=lambda num_classes: nn.Linear(1, num_classes),
        encode=encode,
        shifts=[few_sentences],
    )
    images = torch.randint(256, (90, 6, 6, 1), generator=torch.Generator().manual_seed(0)).byte()
    labels = torch.arange(90) % 3
    refused(
        tmp_path / "images",
        "failed: RuntimeError: .*; it failed on 30 examples and not on 8",
        data={"train": (images[:60], labels[:60]), "test": (images[60:], labels[60:])},
        net=lambda num_classes: nn.Sequential(nn.Flatten(), nn.Linear(36, num_classes)),
        shifts=[lambda batch: (batch * TABLE[: len(batch), None, None, None]).byte()],
    )


def test_other_data_that_cannot_be_repeated(tmp_path):
    rng = np.random.default_rng(0)

    def far(split):
        return torch.from_numpy(rng.normal(size=(12, 3))).float(), torch.zeros(12, dtype=torch.int64)

    refused(tmp_path, "study.ood: object:far returns other data if it is called again", ood=[far])


def test_mistakes_under_a_shift_have_class_names(tmp_path):
    images = torch.randint(256, (90, 6, 6, 1), generator=torch.Generator().manual_seed(0)).byte()
    labels = torch.arange(90) % 3
    store = small(
        tmp_path,
        data={"train": (images[:60], labels[:60]), "test": (images[60:], labels[60:])},
        net=lambda num_classes: nn.Sequential(nn.Flatten(), nn.Linear(36, num_classes)),
        class_names=["ash", "beech", "oak"],
        shifts=["contrast"],
        severities=[5],
    )
    for shift, severity in (("clean", 0), ("contrast", 5)):
        mistakes = store.shown("V", 0, shift, severity)["mistakes"]
        assert {mistake["is"] for mistake in mistakes} <= {"ash", "beech", "oak"}
        assert mistakes
    store.close()


def with_nan(row):
    changed = NUMBERS.clone()
    changed[row, 1] = float("nan")
    return changed


class Masked(nn.Linear):
    """A network that takes NaN for a missing value."""

    def forward(self, inputs):
        return super().forward(inputs.nan_to_num())


def test_inputs_that_are_no_numbers(tmp_path):
    message = r"\(train\): 1 of 40 examples have NaN or infinite inputs \(first: example 30\)"
    both = {"validation": (NUMBERS[40:], LABELS[40:]), "test": (NUMBERS + 0.5, LABELS)}
    refused(tmp_path / "train", message, data={**both, "train": (with_nan(30)[:40], LABELS[:40])})
    message = r"\(test\): 1 of 60 examples have NaN or infinite inputs \(first: example 50\)"
    refused(
        tmp_path / "test",
        message,
        data={**both, "train": (NUMBERS[:40], LABELS[:40]), "test": (with_nan(50) + 0.5, LABELS)},
    )
    small(
        tmp_path / "masked",
        data={**both, "train": (with_nan(30)[:40], LABELS[:40])},
        net=lambda num_classes: Masked(3, num_classes),
    ).close()


def test_logits_that_are_no_numbers(tmp_path):
    class Broken(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs) / 0

    refused(tmp_path, "net.name: .* returned NaN or infinite logits", net=lambda num_classes: Broken(3, num_classes))


def test_a_shift_that_gives_no_numbers(tmp_path):
    def logarithm(batch, severity):
        return (batch - severity).log()

    message = "study.shifts: object:logarithm: at severity 1 the network returned NaN or infinite logits; the shift"
    refused(tmp_path, message, shifts=[logarithm])


def test_shifted_sentences_of_another_length(tmp_path):
    def encode(texts):
        length = max(len(text.split()) for text in texts)
        return torch.stack([torch.arange(float(length)) * len(text) for text in texts])

    texts = [f"one more sentence{'s' * number}" for number in range(60)]
    refused(
        tmp_path,
        r"study.shifts: .*:longer: at severity 1 the network failed on a batch \(8, 4\)",
        data={"train": (texts[:40], LABELS[:40]), "test": (texts[40:], LABELS[40:])},
        encode=encode,
        shifts=[longer],
    )


def longer(texts):
    return [f"{text} here" for text in texts]


def test_a_late_error_names_the_set(tmp_path):
    """The first examples are fine; the rest is seen when the set is evaluated."""

    def late(batch):
        batch[20:] = float("nan")
        return batch

    with pytest.raises(InputError, match=r"^object:late 1: .*NaN"):
        small(tmp_path, shifts=[late], severities=[1])


@pytest.mark.parametrize(
    ("labels", "outputs", "message"),
    [
        (nn.functional.one_hot(LABELS, 3), 2, r"labels \(N, 3\) are labels of tokens: .* \(N,\), such as .argmax\(1\)"),
        (LABELS[:, None], 3, r"labels \(N, 1\) have one dimension too many: use labels\[:, 0\]"),
        (LABELS.clamp(max=1), 1, r"one logit z for two classes is the pair of logits \(0, z\)"),
    ],
    ids=["one-hot", "column", "one logit"],
)
def test_outputs_that_do_not_fit_the_labels(tmp_path, labels, outputs, message):
    data = {"train": (NUMBERS, labels), "test": (NUMBERS + 0.5, labels)}
    refused(tmp_path, message, data=data, net=lambda: nn.Linear(3, outputs))


class Pair(nn.Linear):
    def forward(self, inputs):
        return {"out": super().forward(inputs), "aux": inputs}


class Detached(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs).detach()


def frozen(num_classes):
    return nn.Linear(3, num_classes).requires_grad_(False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data": {"train": (NUMBERS.double().numpy(), LABELS), "test": (NUMBERS.double() + 0.5, LABELS)}},
            r"the inputs are float64: convert them with .float\(\) in load",
        ),
        ({"net": lambda: nn.Linear(3, 3).double()}, r"the network's weights are float64: convert them with .float\(\)"),
        ({"net": frozen}, r"methods.V: .*the logits have no gradient; no weight of the network requires one: set"),
        ({"net": lambda: Detached(3, 3)}, r"methods.V: .*the logits have no gradient; remove torch.no_grad and detach"),
        ({"net": lambda: Pair(3, 3)}, r"keys 'out', 'aux', .* is not clear; let its forward return the logits alone"),
    ],
    ids=["float64 inputs", "float64 weights", "frozen", "detached", "dict"],
)
def test_networks_that_cannot_be_used_as_they_are(tmp_path, changes, message):
    refused(tmp_path, message, **changes)


def test_batch_norm_and_one_held_out_example(tmp_path):
    """The network can be trained, although a batch of held-out data has one row."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    small(tmp_path, net=net, validation=1).close()


def test_a_changed_setting_is_named(tmp_path):
    """The line showed the first 80 characters of all settings, which were the same before and after."""
    small(tmp_path).close()
    with pytest.raises(InputError, match=r"holds another study: methods\.V\.train\.flip was False, now True; choose"):
        small(tmp_path, train=TrainSettings(epochs=1, batch_size=20, milestones=(), factors=(), pad=0, flip=True))


def test_a_changed_setting_is_named_before_the_data_that_it_changes(tmp_path):
    small(tmp_path).close()
    with pytest.raises(InputError, match=r"holds another study: data\.validation was 20, now 15; choose"):
        small(tmp_path, validation=15)


def test_other_data_need_no_labels(tmp_path):
    def far(split):
        return NUMBERS[:12] + 9

    def near(split):
        return NUMBERS[:12] + 9, LABELS[:12]

    store = small(tmp_path / "a", ood=[far, near])
    found = {row[2]: row[5] for row in store.rows() if row[4] == "auroc"}
    assert found["ood:far"] == found["ood:near"]
    store.close()
    sentences = ["a", "b b", "c c c"] * 20
    store = small(
        tmp_path / "b",
        data={"train": (sentences[:40], LABELS[:40]), "test": (sentences[40:], LABELS[40:])},
        encode=lambda texts: torch.tensor([[len(text), 1.0, 2.0] for text in texts]),
        ood=[lambda: ["d d d", "e"]],
    )
    assert store.select("SELECT rows FROM cells WHERE shift LIKE 'ood:%'") == [(2,)]
    store.close()


def test_mistakes_in_other_data_name_their_key(tmp_path):
    refused(tmp_path, "^study.ood: .* failed: ZeroDivisionError", ood=[broken])


def broken(split):
    return 1 / 0


def test_classes_without_examples_get_a_line(tmp_path, capsys):
    labels = LABELS + LABELS.clamp(max=1)
    data = {"train": (NUMBERS, labels), "test": (NUMBERS[:30] + 0.5, labels[:30])}
    small(tmp_path / "a", data=data).close()
    assert "1 of 4 classes have no training example (1); labels are counted from 0" in capsys.readouterr().err
    small(tmp_path / "b").close()
    assert "no training example" not in capsys.readouterr().err


def test_a_shift_without_severity_gets_a_line(tmp_path, capsys):
    def dim(batch, level=1):
        return batch / level

    def dark(batch, severity):
        return batch / severity

    small(tmp_path / "a", shifts=[dim], severities=[1]).close()
    assert "takes no 'severity'" not in capsys.readouterr().err
    small(tmp_path / "b", shifts=[dim, dark], severities=[1, 5]).close()
    said = capsys.readouterr().err
    assert said.count("takes no 'severity'") == 1
    assert "study.shifts: object:dim takes no 'severity', so it does the same at every severity" in said


class Several(nn.Linear):
    """A network with a second output in training, as GoogLeNet in torchvision."""

    def forward(self, inputs):
        logits = super().forward(inputs.flatten(1))
        return (logits, logits) if self.training else logits


def test_a_network_with_two_outputs_in_training(tmp_path):
    images = torch.randint(256, (60, 2, 2, 1), generator=torch.Generator().manual_seed(0)).byte()
    data = {"train": (images[:40], LABELS[:40]), "test": (images[40:], LABELS[40:])}
    message = "methods.V: .* the network returned a tuple in training mode; let its forward return the logits alone"
    refused(tmp_path, message, data=data, net=lambda num_classes: Several(4, num_classes))


class Scaled(nn.Module):
    def forward(self, batch, severity):
        return batch * severity


def test_a_shift_that_is_a_module_gets_its_arguments(tmp_path, capsys):
    def scaled(batch, severity):
        return batch * severity

    store = small(tmp_path, shifts=[Scaled(), scaled], severities=[1, 5])
    found = {row[2:4]: row[5] for row in store.rows() if row[4] == "nll"}
    assert found["object:shift", 5] == found["object:scaled", 5] != found["object:shift", 1]
    assert "takes no 'severity'" not in capsys.readouterr().err
    store.close()


PICTURES = torch.randint(256, (60, 2, 2, 1), generator=torch.Generator().manual_seed(0)).byte()
MISSING = torch.where(torch.arange(60) == 3, -100, LABELS)


@pytest.mark.parametrize(
    ("data", "names", "message"),
    [
        (
            {"test": (NUMBERS + 0.5, LABELS + 4)},
            (),
            r"\(test\): label 6, but the training data have 3 classes",
        ),
        ({}, ("ash", "oak"), r"\(train\): label 2, but there are only 2 class names \(0 … 1\)"),
        ({"test": (NUMBERS[:0], LABELS[:0])}, (), r"\(test\): there are no examples"),
        ({"train": (PICTURES, MISSING)}, (), r"\(train\): 1 images have no label; leave them out"),
        ({"train": (PICTURES[..., 0], LABELS)}, (), r"grey images get a dimension by \[..., None\]"),
    ],
    ids=["unknown class", "few names", "empty", "no label", "grey"],
)
def test_labels_and_images_that_do_not_fit(tmp_path, data, names, message):
    given = {"train": (NUMBERS, LABELS), "test": (NUMBERS[:30] + 0.5, LABELS[:30]), **data}
    refused(tmp_path, message, data=given, class_names=names)


SENTENCES = [f"{['good', 'fine', 'bad'][number % 3]} {number}" for number in range(60)]


class Reviews(Dataset):
    classes = ("good", "fine", "bad")

    def __getitem__(self, index):
        return SENTENCES[index], int(LABELS[index])

    def __len__(self):
        return 60


@pytest.mark.parametrize(
    "form",
    [
        lambda: (np.array(SENTENCES), LABELS.numpy()),
        Reviews,
        lambda: DataLoader(Reviews(), batch_size=7, shuffle=True, drop_last=True),
    ],
    ids=["arrays", "dataset", "loader"],
)
def test_sentences_in_other_forms(form):
    config = DataConfig(source=register(lambda split: form(), "data"), encode=f"{__name__}:lengths", validation=5)
    forget()
    found = load_own(config, "train")
    assert found.texts == tuple(SENTENCES)
    assert found.class_names == (() if isinstance(form(), tuple) else Reviews.classes)
    assert torch.equal(found.labels, LABELS)
    assert found.inputs[:, 0].tolist() == [len(text) for text in SENTENCES]


def lengths(texts):
    return torch.tensor([[float(len(text))] for text in texts])


def test_a_last_batch_of_one_row_is_found_before_any_training(tmp_path):
    """Also if only the batch size of a later method leaves one row."""
    methods = {"V": Vanilla(), "late": {"method": Vanilla(), "train": {"batch_size": 13}}}
    message = "methods.late: 40 rows in batches of 13 leave a last batch of one row"

    def net(num_classes):
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, num_classes))

    refused(tmp_path, message, methods=methods, net=net)


def test_members_with_equal_starts_get_a_line(tmp_path, capsys):
    start = nn.Linear(3, 3)
    methods = {"V": Vanilla(), "Trio": Ensemble(members=3)}
    small(tmp_path / "a", methods=methods, net=lambda: start).close()
    assert "so the members of Trio start alike" in capsys.readouterr().err
    small(tmp_path / "b", methods=methods).close()
    small(tmp_path / "lazy", methods=methods, net=lambda num_classes: nn.LazyLinear(num_classes)).close()
    assert "start alike" not in capsys.readouterr().err


def normalised(num_classes):
    """A network that normalises by the statistics of each batch, in evaluation mode, too."""
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, num_classes))


class Centred(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs - inputs.mean(0))


def test_logits_that_depend_on_the_batch(tmp_path, capsys):
    message = "net.name: .* failed on a single example, in evaluation mode: .*; batch normalisation needs running"
    refused(tmp_path / "a", message, net=normalised)
    small(tmp_path / "b", net=lambda num_classes: Centred(3, num_classes)).close()
    assert "returns other logits for an example that is alone in its batch" in capsys.readouterr().err
    for net in (nn.Linear, nn.LazyLinear):
        small(tmp_path / net.__name__, net=lambda: net(3, 3) if net is nn.Linear else net(3)).close()  # noqa: B023
        assert "alone in its batch" not in capsys.readouterr().err
