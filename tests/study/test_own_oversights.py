"""What is easily overlooked in own data: the label 255 of pixels, and crops that images as floats do not get."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from avuc.core.errors import InputError
from avuc.methods import Vanilla
from avuc.study import run
from avuc.train import TrainSettings

TRAIN = TrainSettings(epochs=1, batch_size=20, milestones=(), factors=(), pad=0, flip=False)


def make_net(num_classes):
    return nn.Conv2d(3, num_classes, 1)


def small(out, **changes):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (60, 4, 4, 3), generator=generator, dtype=torch.uint8)
    labels = torch.randint(3, (60, 4, 4), generator=generator)
    labels[:, 0] = 255
    data = {"train": (images[:40], labels[:40]), "test": (images[40:], labels[40:])}
    settings = {"methods": {"CE": Vanilla()}, "data": data, "net": make_net, "train": TRAIN, "validation": 10}
    return run(**{**settings, "seeds": [0], "progress": False, "out": out, **changes})


def test_255_is_not_silently_a_class(tmp_path):
    with pytest.raises(InputError, match=r"labels are 0 … 2 and 255, .* set data.ignore_index = 255"):
        small(tmp_path)


def test_255_beside_class_names_names_the_remedy(tmp_path):
    with pytest.raises(InputError, match=r"only 3 class names .*set data.ignore_index = 255 if it marks positions"):
        small(tmp_path, class_names=["road", "car", "tree"])


def test_255_may_be_named_as_a_class(tmp_path):
    store = small(tmp_path, class_names=[str(number) for number in range(256)])
    assert store.done()
    store.close()


def test_255_from_a_shift_gets_a_line_that_applies(tmp_path):
    def void(images, labels):
        return images, labels.masked_fill(labels == 0, 255)

    with pytest.raises(InputError, match=r"study.shifts: .*void returned the label 255; expected .* -100 where there"):
        small(tmp_path, ignore_index=255, shifts=[void], severities=[5])


def test_labels_of_tokens_that_a_shift_makes_wrong(tmp_path):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(9, (60, 5), generator=generator)
    data = {"train": (ids[:40], ids[:40] % 3), "test": (ids[40:], ids[40:] % 3)}

    class Tokens(nn.Sequential):
        def __init__(self, num_classes):
            super().__init__(nn.Embedding(9, 4), nn.Linear(4, num_classes))

    def shifted(ids, labels):
        return ids, labels + 1

    with pytest.raises(InputError, match=r"study.shifts: .* returned the label 3; expected classes 0 … 2"):
        small(tmp_path, data=data, net=Tokens, class_dim=-1, shifts=[shifted], severities=[5])


@pytest.mark.parametrize(("settings", "told"), [({"pad": 4}, True), ({"flip": True}, True), ({}, False)])
def test_crops_that_float_images_do_not_get_are_mentioned(tmp_path, capsys, settings, told):
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.rand(60, 3, 4, 4, generator=generator), torch.arange(60) % 2
    data = {"train": (images[:40], labels[:40]), "test": (images[40:], labels[40:])}

    def net(num_classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(48, num_classes))

    small(tmp_path, data=data, net=net, train=replace(TRAIN, **settings)).close()
    assert ("trained without crops and flips" in capsys.readouterr().err) == told
