"""Mistakes of a newcomer: each is one line that names the key of the recipe, before anything is trained."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from avuc.core.errors import InputError
from avuc.methods import Vanilla
from avuc.study import load_recipe, run, run_study
from avuc.train import TrainSettings

TRAIN = TrainSettings(epochs=1, batch_size=20, milestones=(), factors=(), pad=0, flip=False)
LABELS = torch.arange(60) % 3
PICTURES = torch.randint(256, (90, 4, 4, 1), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
IMAGES, OTHERS = PICTURES[:60], PICTURES[60:]


def make_net(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, num_classes))


def images(train=LABELS, test=LABELS[:30]):
    return {"train": (IMAGES, train), "test": (OTHERS, test)}


def refused(out, message, **changes):
    """Expect one line that begins like this, before anything is trained."""
    given = {"methods": {"V": Vanilla()}, "data": images(), "net": make_net, "train": TRAIN, "validation": 20}
    with pytest.raises(InputError, match=f"^{message}") as raised:
        run(out=out, **{**given, "samples": 1, "device": "cpu", "progress": False, **changes})
    assert "\n" not in str(raised.value)
    assert not (out / "models").exists()


def ends(*_, **__):
    raise SystemExit(3)


class Ends(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        raise SystemExit(3)


class EndingNet(nn.Linear):
    def __init__(self, num_classes):
        super().__init__(3, num_classes)

    def forward(self, batch):
        raise SystemExit(3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"net": lambda num_classes: ends()}, r"net.name: .* failed: SystemExit: 3 \(test_own_mistakes.py, line \d+\)"),
        ({"net": EndingNet}, "net.name: .*EndingNet failed on a batch .*: SystemExit: 3"),
        ({"data": lambda split: ends()}, r"data.source: .*\(split='train'\) failed: SystemExit: 3"),
        ({"data": lambda split: Ends()}, r"data.source: .* \(train\): reading it failed: SystemExit: 3"),
        ({"shifts": [ends]}, "study.shifts: .*:ends failed: SystemExit: 3"),
    ],
    ids=["make_net", "forward", "load", "Dataset", "shift"],
)
def test_code_that_ends_python(tmp_path, changes, message):
    """Without this, the command would end with the exit code of the user's code and without a word."""
    refused(tmp_path, message, **changes)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (images(LABELS[:-1]), r"labels must be int64 \(60,\), .* found int64 \(59,\); correct their number$"),
        (
            {"train": (IMAGES.movedim(-1, 1).expand(-1, 3, -1, -1), LABELS)},
            r"images \(60, 3, 4, 4\) have the channels first; use .permute\(0, 2, 3, 1\)$",
        ),
        (
            {"train": (IMAGES[..., 0], LABELS)},
            r"uint8 inputs are images .* grey images get a dimension by \[..., None\]",
        ),
    ],
    ids=["fewer labels", "channels first", "grey"],
)
def test_images_that_do_not_fit_name_the_key(tmp_path, data, message):
    refused(tmp_path, rf"data.source: object:data \(train\): {message}", data={**images(), **data})


def test_other_images_that_do_not_fit_name_their_key(tmp_path):
    def street(split):
        return OTHERS.movedim(-1, 1).expand(-1, 3, -1, -1)

    refused(tmp_path, r"study.ood: object:street: images .* have the channels first", ood=[street])


def test_other_data_have_no_options(tmp_path):
    def street(split, town):
        return OTHERS

    refused(tmp_path, r"study.ood: .*street needs 'town', .*; rename it or give it a default$", ood=[street])


def test_images_and_numbers_as_splits(tmp_path):
    data = {"train": (IMAGES, LABELS), "test": (OTHERS.float(), LABELS[:30])}
    message = "data.source: object:data: the training data are uint8 images with one label each, the test data other "
    refused(tmp_path, f"{message}tensors; return the same for both splits$", data=data)


def test_labels_from_1(tmp_path):
    """Class 0 would be an output that is never right, and the entropy would be compared with log 4."""
    message = "data.source: object:data: the labels are 1 … 3, and classes are counted from 0; subtract 1, or set "
    refused(tmp_path, f"{message}data.class_names if there is a class 0$", data=images(LABELS + 1, LABELS[:30] + 1))


@pytest.mark.parametrize("changes", [{"class_names": list("abcd")}, {"ignore_index": 0}])
def test_class_0_may_be_unused(tmp_path, changes, capsys):
    dense = "ignore_index" in changes  # masks: 0 is "no label"
    train, test = (LABELS[:, None, None].expand(-1, 4, 4) + 1 if dense else LABELS + 1 for _ in range(2))
    net = (lambda num_classes: nn.Conv2d(1, num_classes, 1)) if dense else make_net
    data = images(train, test[:30])
    settings = {"data": data, "net": net, "train": TRAIN, "validation": 20, "samples": 1, "progress": False}
    run(methods={"V": Vanilla()}, out=tmp_path, **settings, **changes).close()
    assert "1 of 4 classes have no training example" in capsys.readouterr().err


@pytest.mark.parametrize("label", [0, 2])
def test_a_single_class(tmp_path, label):
    labels = torch.full((60,), label)
    message = f"data.source: object:data: every training example has the label {label}; a classifier needs at least two"
    refused(tmp_path, message, data=images(labels, labels[:30]))


def test_numbers_of_customers_as_labels(tmp_path):
    """The network would get an output for each number; for large ones the memory does not suffice."""
    message = r"data.source: object:data \(train\): the highest of 60 labels is 2000; number the classes from 0"
    refused(tmp_path, message, data=images(LABELS * 1000))


def test_one_example(tmp_path):
    data = {"train": (IMAGES[:1], LABELS[:1]), "test": (OTHERS, LABELS[:30])}
    refused(tmp_path, "object:data train: 1 examples are too few to hold out some .*; set data.validation", data=data)


def test_every_severity_of_a_shift_is_tried(tmp_path):
    def crop(batch, severity):
        return batch[:, :3] if severity == 3 else batch

    message = (
        r"study.shifts: object:crop returned torch.uint8 of shape \(8, 3, 4, 1\); expected uint8 of shape \(8, 4, "
    )
    refused(tmp_path, message, shifts=[crop], severities=[1, 3, 5])


RECIPE = """
[data]
source = "cars"

[net]
name = "mlp"

[[methods]]
name = "V"
method = "vanilla"
"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            'net.name="parts.nets.make"',
            r"net: name: no net .*; your own is named module:function, such as parts.nets:make$",
        ),
        ('study.shifts=["parts.rain"]', r"shifts: no shift .*; your own is named module:function, such as parts:rain$"),
        ('data.source="parts.load"', r"^data.source: no data set 'parts.load'; .*, such as parts:load$"),
        ('data.source="cifar11"', r"^data.source: no data set 'cifar11'; did you mean 'cifar10'\? .* module:function$"),
    ],
)
def test_a_dot_in_place_of_the_colon(tmp_path, change, message):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    with pytest.raises(InputError, match=message):
        run_study(load_recipe(tmp_path / "recipe.toml", [change]), tmp_path / "out", device="cpu", progress=False)


def test_weights_that_are_missing_name_their_key(tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    changes = ["data.source='mnist5k'", "data.validation=1000", "net.weights='none.safetensors'", "study.shifts=[]"]
    with pytest.raises(InputError, match=r"^net.weights: none.safetensors: cannot be read"):
        run_study(load_recipe(tmp_path / "recipe.toml", changes), tmp_path / "out", device="cpu", progress=False)


def test_a_relative_import_beside_the_recipe(tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "relative_parts.py").write_text("from .blocks import block\n")
    changes = ["net.name='relative_parts:make'", "data.source='mnist5k'", "data.validation=1000", "study.shifts=[]"]
    with pytest.raises(
        InputError, match=r"no known parent package \(relative_parts.py, line 1\); write it without the"
    ):
        run_study(load_recipe(tmp_path / "recipe.toml", changes), tmp_path / "out", device="cpu", progress=False)
