"""Studies of networks that return an object with `logits`, as those of Hugging Face do, with every method."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from avuc.core.errors import InputError
from avuc.methods import METHODS
from avuc.study import run
from avuc.study.grid import ModelKey
from avuc.study.net import make_net
from avuc.study.own.code import register
from avuc.study.recipe.sections import NetConfig
from avuc.study.worker import StudyWorker
from avuc.train import TrainSettings

TRAIN = TrainSettings(epochs=3, batch_size=20, learning_rate=1e-2, milestones=(), factors=(), pad=0, flip=False)
GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.randint(256, (60, 4, 4, 1), generator=GENERATOR).byte()
LABELS = (IMAGES[:, 0, 0, 0] > 127).long()
DATA = {"train": (IMAGES[:40], LABELS[:40]), "test": (IMAGES[40:], LABELS[40:])}
EVERY_METHOD = {
    **{name: name for name in METHODS},
    "swag": {"method": {"kind": "swag", "start": 0.1}},
    "TS": {"reuse_model": "vanilla", "calibrator": "temperature"},
    "frozen": {"method": "ll_svi", "init_from": "vanilla", "train": {"freeze_trunk": True}},
    "AvUC": {"method": "svi", "objective": {"kind": "avuc", "warmup_epochs": 1}},
}


def small(out, **changes):
    given = {"methods": {"vanilla": "vanilla"}, "data": DATA, "train": TRAIN, "validation": 10, "samples": 2}
    return run(out=out, **{**given, "device": "cpu", "progress": False, **changes})


class Plain(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU())
        self.classifier = nn.Linear(8, num_classes)

    def forward(self, pixel_values):
        return self.classifier(self.body(pixel_values))


class WithDict(Plain):
    def forward(self, pixel_values):
        return {"logits": super().forward(pixel_values), "hidden": pixel_values}


class Unclear(Plain):
    def forward(self, pixel_values):
        return {"first": super().forward(pixel_values), "hidden": pixel_values}


def vit(num_classes):
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return ViTForImageClassification(
        ViTConfig(**sizes, image_size=4, patch_size=2, num_channels=1, num_labels=num_classes)
    )


def figures(store):
    return {row[:5]: row[5] for row in store.rows() if row[4] != "seconds"}


def test_a_dict_gives_the_figures_of_its_logits(tmp_path):
    """Every method; the shifted images, too."""
    given = {"methods": EVERY_METHOD, "shifts": ["contrast"], "severities": [5]}
    expected = figures(small(tmp_path / "plain", net=Plain, **given))
    found = figures(small(tmp_path / "dict", net=WithDict, **given))
    assert found == pytest.approx(expected, rel=1e-6, nan_ok=True)


def test_an_image_classifier_of_hugging_face(tmp_path):
    pytest.importorskip("transformers")
    store = small(tmp_path, net=vit, methods=EVERY_METHOD)
    assert len(store.done()) == 2 * len(EVERY_METHOD)
    worker = StudyWorker(store.recipe(), tmp_path, "cpu", progress=False)
    net = worker.posterior(ModelKey("vanilla", 0)).net
    assert list(net.state_dict()) == list(vit(2).state_dict())
    alone = vit(2).eval()
    alone.load_state_dict(net.state_dict())
    with torch.no_grad():
        said = alone(IMAGES[40:].permute(0, 3, 1, 2) / 255).logits.argmax(1)
    accuracy = figures(store)["vanilla", 0, "clean", 0, "accuracy"]
    assert accuracy == pytest.approx((said == LABELS[40:]).double().mean().item())


WORDS = ("good", "fine", "bad", "poor", "film", "plot")


def encode(texts):
    ids = torch.tensor([[1 + WORDS.index(word) for word in text.split()] for text in texts])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def bert(num_classes):
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return BertForSequenceClassification(
        BertConfig(**sizes, vocab_size=10, max_position_embeddings=8, num_labels=num_classes)
    )


def test_a_text_classifier_of_hugging_face(tmp_path):
    pytest.importorskip("transformers")
    rows = torch.randint(6, (60, 3), generator=torch.Generator().manual_seed(1)).tolist()
    texts = [" ".join(WORDS[number] for number in row) for row in rows]
    labels = torch.tensor([sum(number < 2 for number in row) > 1 for row in rows]).long()
    data = {"train": (texts[:40], labels[:40]), "test": (texts[40:], labels[40:])}
    store = small(tmp_path, net=bert, methods=EVERY_METHOD, data=data, encode=encode)
    assert len(store.done()) == 2 * len(EVERY_METHOD)


def test_an_object_without_logits_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"net.name: .* keys 'first', 'hidden', .* is not clear; let its forward"):
        small(tmp_path, net=Unclear)
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(("kind", "hooks"), [(Plain, 0), (WithDict, 1)])
def test_networks_that_return_tensors_have_no_hook(kind, hooks):
    """Fast paths are for networks without hooks; the names of the weights stay in both cases."""
    net = make_net(NetConfig(name=register(kind, "net")), 2, (4, 4, 1), None, torch.Generator().manual_seed(0))
    assert len(net._forward_hooks) == hooks
    assert list(net.state_dict()) == list(Plain(2).state_dict())
