"""Whole studies of other tasks than images with one label: tables, pixels, tokens and sentences."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from avuc.core.errors import InputError
from avuc.data.tensors import TensorData
from avuc.methods import METHODS as ALL_METHODS
from avuc.methods import SVI, SWAG, Dropout, Ensemble, Objective, Vanilla
from avuc.predictions import Predictions
from avuc.report.study.page import study_page
from avuc.report.study.results import read_results
from avuc.study import Store, load_recipe, run, run_study
from avuc.study.evaluation.maps import worst_maps
from avuc.study.grid import CLEAN, ModelKey, TestSet
from avuc.study.worker import StudyWorker
from avuc.train import TrainSettings

TRAIN = TrainSettings(epochs=8, batch_size=20, learning_rate=2e-2, milestones=(), factors=(), pad=0, flip=False)
SVI_AVUC = {"method": SVI(initial_std=0.02), "objective": Objective("avuc", variant="paper", warmup_epochs=1)}
METHODS = {
    "Vanilla": Vanilla(),
    "TS": {"reuse_model": "Vanilla", "calibrator": "temperature"},
    "SVI-AvUC": SVI_AVUC,
    "Dropout": Dropout(0.1),
    "Ensemble": Ensemble(2),
}


def small(out, **changes):
    settings = {"methods": METHODS, "train": TRAIN, "samples": 2, "severities": [1, 5], "validation": 20}
    return run(out=out, progress=False, **{**settings, "device": "cpu", **changes})


def values(store):
    return {row[:5]: row[5] for row in store.rows()}


def worker_of(store, folder):
    return StudyWorker(store.recipe(), folder, "cpu", progress=False)


# tables


class Table(Dataset):
    """Two numbers and the quadrant they are in, as a user's Dataset; items are mappings."""

    def __init__(self, split):
        generator = torch.Generator().manual_seed(0 if split == "train" else 1)
        self.numbers = torch.randn(100, 2, generator=generator)

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        left, right = self.numbers[index]
        return {"left": left[None], "right": right[None], "label": int(left > 0) + 2 * int(right > 0)}


def load_table(split):
    return DataLoader(Table(split), batch_size=7, shuffle=True)


class TableNet(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, num_classes))

    def forward(self, left, right):
        return {"logits": self.layers(torch.cat([left, right], 1)), "hidden": left}


def blur(batch, severity, generator):
    noise = torch.randn(batch["left"].shape, generator=generator)
    return {**batch, "left": batch["left"] + 0.3 * severity * noise}


def test_mapping_of_tensors(tmp_path):
    store = small(tmp_path, data=load_table, net=TableNet, shifts=[blur], train=TRAIN)
    found = values(store)
    assert len(store.done()) == 5 * 4
    shift = f"{__name__}:blur"
    assert found["Vanilla", 0, "clean", 0, "accuracy"] > found["Vanilla", 0, shift, 5, "accuracy"]
    # by hand: what is stored is the accuracy of the network on the table
    worker, table = worker_of(store, tmp_path), Table("test")
    net = worker.posterior(ModelKey("Vanilla", 0)).net.net
    said = net.layers(table.numbers).argmax(1)
    labels = torch.tensor([table[row]["label"] for row in range(len(table))])
    assert found["Vanilla", 0, "clean", 0, "accuracy"] == pytest.approx((said == labels).double().mean().item())
    page = study_page(read_results(Store(tmp_path, create=False)))
    assert "example " in page
    assert "Entropy on clean and on other examples" in page
    assert "clean images" not in page


def test_float_tensors_and_bad_shifts(tmp_path):
    data = {split: (Table(split).numbers, torch.arange(100) % 3) for split in ("train", "test")}
    given = {"data": data, "net": lambda num_classes: nn.Linear(2, num_classes), "methods": {"V": Vanilla()}}
    assert len(small(tmp_path / "a", **given, shifts=[lambda batch: batch + 1]).done()) == 4
    for shift, message in (
        ("fog", "'fog' changes uint8 images, and object:data test has none"),
        ("typos", "'typos' changes sentences, and object:data test has none"),
        (lambda batch: batch[:, :1], "expected ((8, 2), torch.float32), like its input"),
        (lambda batch: None, "returned NoneType; expected"),
    ):
        with pytest.raises(InputError) as caught:
            small(tmp_path / "b", **given, shifts=[shift])
        assert message in str(caught.value)
    with pytest.raises(InputError, match="mlp is for images; these data need a network of your own"):
        small(tmp_path / "c", **{**given, "net": "mlp"})
    assert not (tmp_path / "b" / "models").exists()


# pixels


def load_pixels(split):
    """Grey images with a bright square; the label of a pixel is 1 inside, 0 outside, and 255 on the border."""
    generator = torch.Generator().manual_seed(0 if split == "train" else 1)
    images = torch.randint(0, 90, (60, 12, 12, 3), generator=generator)
    labels = torch.zeros(60, 12, 12, dtype=torch.int64)
    corners = torch.randint(0, 6, (60, 2), generator=generator)
    for image, label, (top, left) in zip(images, labels, corners.tolist(), strict=True):
        image[top : top + 6, left : left + 6] += 120
        label[top : top + 6, left : left + 6] = 1
    labels[:, 0] = 255
    return images.to(torch.uint8), labels


def pixel_net(num_classes):
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, num_classes, 3, padding=1))


@pytest.fixture
def pixel_recipe(tmp_path, monkeypatch):
    """A study of pixels through a recipe, with ignore_index = 255."""
    text = f"""
[study]
samples = 2
shifts = ["gaussian_noise"]
severities = [5]
[data]
source = "{__name__}:load_pixels"
validation = 15
ignore_index = 255
[net]
name = "{__name__}:pixel_net"
[train]
epochs = 10
batch_size = 15
learning_rate = 2e-2
milestones = []
factors = []
pad = 1
[[methods]]
name = "Vanilla"
method = "vanilla"
[[methods]]
name = "AvUTS"
reuse_model = "Vanilla"
calibrator = "avuts"
[[methods]]
name = "LL-SVI-AvUC"
method = "ll_svi"
objective = {{ kind = "avuc", warmup_epochs = 1 }}
"""
    (tmp_path / "recipe.toml").write_text(text)
    return load_recipe(tmp_path / "recipe.toml")


def test_pixels(pixel_recipe, tmp_path, monkeypatch):
    monkeypatch.setattr("avuc.study.store.store.MOST_ENTROPIES", 1000)
    store = run_study(pixel_recipe, tmp_path / "out", device="cpu", progress=False)
    found = values(store)
    rows = dict(store.select("SELECT method || shift, rows FROM cells"))
    assert rows["Vanillaclean"] == 60 * 12 * 11  # without the ignored row of pixels
    assert found["Vanilla", 0, "clean", 0, "accuracy"] > 0.9
    history = store.history("LL-SVI-AvUC", 0)
    assert all(0 <= record["accuracy"] <= 1 for record in history)
    assert len(store.clean_entropy("Vanilla", 0)) == 990  # every eighth
    # by hand
    worker = StudyWorker(pixel_recipe, tmp_path / "out", "cpu", progress=False)
    data = worker.data.images(CLEAN)
    net = worker.posterior(ModelKey("Vanilla", 0)).net
    images, labels = load_pixels("test")
    said = net(images.permute(0, 3, 1, 2) / 255).argmax(1)
    right = (said == labels)[labels != 255].double().mean().item()
    assert found["Vanilla", 0, "clean", 0, "accuracy"] == pytest.approx(right)
    assert data.num_labelled == rows["Vanillaclean"]
    shown = store.shown("Vanilla", 0, "clean", 0)["mistakes"]
    assert shown
    assert all(mistake["map"] and mistake["png"] for mistake in shown)
    page = study_page(read_results(Store(tmp_path / "out", create=False)))
    assert '"map":true' in page
    assert "Entropy on clean and on other pixels" in page


def test_worst_maps_are_sorted_by_certain_mistakes():
    probs = torch.full((3, 2, 2, 2), 0.5)
    probs[1, 0] = 0.99  # class 0, certain
    probs[1, 1] = 0.01
    labels = torch.ones(3, 2, 2, dtype=torch.int64)
    labels[2, 0, 0] = -100
    data = TensorData(torch.zeros(3, 2, 2, 1, dtype=torch.uint8), labels, 2)
    found = worst_maps(Predictions(probs, labels), data)
    assert [entry["is"] for entry in found] == ["example 1"]
    assert found[0]["said"] == "100.0% wrong"


# tokens and sentences

WORDS = ["good", "great", "fine", "bad", "awful", "poor", "film", "plot", "the", "a"]


def load_sentences(split):
    generator = torch.Generator().manual_seed(0 if split == "train" else 1)
    texts, labels = [], []
    for _ in range(120):
        label = int(torch.randint(2, (), generator=generator))
        mood = WORDS[3 * (1 - label) + int(torch.randint(3, (), generator=generator))]
        rest = [WORDS[6 + int(torch.randint(4, (), generator=generator))] for _ in range(4)]
        texts.append(" ".join([*rest[:2], mood, *rest[2:]]))
        labels.append(label)
    return texts, torch.tensor(labels)


def encode(texts):
    known = {word: number for number, word in enumerate(WORDS, start=2)}
    ids = torch.zeros(len(texts), 8, dtype=torch.int64)
    for row, text in enumerate(texts):
        numbers = [known.get(word, 1) for word in text.split()[:8]]
        ids[row, : len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


class TextNet(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.words, self.last = nn.Embedding(12, 8), nn.Linear(8, num_classes)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask[..., None]
        return self.last((self.words(input_ids) * mask).sum(1) / mask.sum(1).clamp(min=1))


RECIPE = """
[study]
samples = 2
shifts = ["typos", "word_dropout", "other.csv", "{module}:shout"]
severities = [1, 5]
ood = ["outside.tsv"]
[data]
source = "{module}:load_sentences"
encode = "{module}:encode"
validation = 30
[net]
name = "{module}:TextNet"
[train]
epochs = 12
batch_size = 20
learning_rate = 3e-2
milestones = []
factors = []
[[methods]]
name = "Vanilla"
method = "vanilla"
[[methods]]
name = "TS"
reuse_model = "Vanilla"
calibrator = "temperature"
[[methods]]
name = "SVI-AvUC"
method = {{ kind = "svi", moped = true, delta = 0.1 }}
objective = {{ kind = "avuc", warmup_epochs = 1 }}
init_from = "Vanilla"
"""


def shout(texts):
    return [text.upper() for text in texts]


def test_sentences(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.toml").write_text(RECIPE.format(module=__name__))
    other = "".join(f"the food was {word},{label}\n" for word, label in (("good", 1), ("bad", 0), ("poor", 0)))
    (tmp_path / "other.csv").write_text("text,label\n" + other)
    (tmp_path / "outside.tsv").write_text("sentence\nsome other thing\nand one more\n")
    recipe = load_recipe("recipe.toml")
    store = run_study(recipe, "out", device="cpu", progress=False)
    found = values(store)
    assert len(store.done()) == 3 * (2 + 8 + 1)
    accuracy = {key[2:4]: value for key, value in found.items() if key[0] == "Vanilla" and key[4] == "accuracy"}
    assert accuracy["clean", 0] > 0.95
    assert accuracy["typos", 5] < accuracy["clean", 0]
    assert accuracy["word_dropout", 5] < accuracy["word_dropout", 1]
    assert found["Vanilla", 0, "ood:outside", 0, "auroc"] > 0.5
    worker = StudyWorker(recipe, tmp_path / "out", "cpu", progress=False)
    clean, fifth, whole = (worker.data.images(one) for one in (CLEAN, TestSet("other.csv", 1), TestSet("other.csv", 5)))
    assert sum(text.startswith("the food") for text in fifth.texts) == len(clean) // 5
    assert all(text.startswith("the food") for text in whole.texts)
    assert [int(label) for label in whole.labels] == [int(text.endswith("good")) for text in whole.texts]
    assert worker.data.images(TestSet(f"{__name__}:shout", 1)).texts[0] == clean.texts[0].upper()
    shown = store.shown("Vanilla", 0, "typos", 5)["mistakes"]
    assert shown
    assert all("text" in mistake for mistake in shown)
    page = study_page(read_results(Store(tmp_path / "out", create=False)))
    assert shown[0]["text"] in page
    assert clean.texts[0] in page  # the gallery
    assert "Entropy on clean and on other sentences" in page
    assert "clean images" not in page


def test_sentences_from_python(tmp_path, monkeypatch):
    """The study of the recipe again, with objects; then its files change."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.csv").write_text("text,label\nsome good food,1\nsome bad food,0\n")
    given = {"data": load_sentences, "net": TextNet, "encode": encode, "methods": {"V": Vanilla(), "SVI": SVI_AVUC}}
    store = small(tmp_path / "out", **given, shifts=["other.csv"])
    assert len(store.done()) == 2 * 4
    store.close()
    (tmp_path / "other.csv").write_text("text,label\nsome good food,1\nsome poor food,0\n")
    with pytest.raises(InputError, match=r"the data 'other.csv' have changed"):
        small(tmp_path / "out", **given, shifts=["other.csv"], seeds=[0, 1])
    for changes, message in (
        ({"encode": ""}, "sentences need data.encode"),
        ({"encode": lambda texts: [1, 2]}, "must return a tensor, or a mapping of tensors"),
        ({"encode": lambda texts: texts.lower()}, "object:encode failed: AttributeError"),
        ({"shifts": ["fog"]}, "'fog' changes uint8 images"),
        ({"train": TrainSettings(augmentation="augmix")}, "augmentation: augmix is for uint8 images"),
        ({"data": load_table}, "data.encode is for sentences"),
    ):
        with pytest.raises(InputError) as caught:
            small(tmp_path / "b", **{**given, **changes})
        assert message in str(caught.value)


class TaggerNet(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.words, self.last = nn.Embedding(12, 8), nn.Linear(8, num_classes)

    def forward(self, input_ids):
        return self.last(self.words(input_ids))  # (N, T, C)


def load_tags(split):
    """A label for each token: 0 for function words, 1 for other words; padding has none."""
    ids = encode(load_sentences(split)[0])["input_ids"]
    return {"input_ids": ids, "labels": torch.where(ids == 0, -100, (ids < 8).long())}


def test_tokens(tmp_path):
    given = {"methods": {"Vanilla": Vanilla(), "SVI": SVI_AVUC}, "data": load_tags, "net": TaggerNet}
    with pytest.raises(InputError, match=r"returned \(8, 8, 2\) .* set net.class_dim = -1"):
        small(tmp_path / "a", **given)
    store = small(tmp_path / "b", **given, class_dim=-1)
    assert values(store)["Vanilla", 0, "clean", 0, "accuracy"] > 0.95
    assert dict(store.select("SELECT method || shift, rows FROM cells"))["Vanillaclean"] == 120 * 5


class FirstClasses(TaggerNet):
    def forward(self, input_ids):
        return super().forward(input_ids).movedim(-1, 1)  # (N, C, T)


class FixedLength(FirstClasses):
    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.mix = nn.Linear(2, 2)

    def forward(self, input_ids):
        return self.mix(super().forward(input_ids))


def load_pairs(split):
    """Two tokens and two classes: the shape of the logits does not say which dimension has the classes."""
    ids = torch.randint(1, 12, (60, 2), generator=torch.Generator().manual_seed(len(split)))
    return {"input_ids": ids, "labels": (ids < 8).long()}


def test_as_many_tokens_as_classes(tmp_path, capsys):
    given = {"methods": {"Vanilla": Vanilla()}, "data": load_pairs, "severities": [1]}
    for net, right, wrong in ((TaggerNet, -1, 1), (FirstClasses, 1, -1)):
        with pytest.raises(
            InputError, match=rf"classes in dimension {right} of its logits, .* set net.class_dim = {right}"
        ):
            small(tmp_path / "a", **given, net=net, class_dim=wrong)
        small(tmp_path / net.__name__, **given, net=net, class_dim=right)
    assert "as many tokens as classes" not in capsys.readouterr().err
    small(tmp_path / "b", **given, net=FixedLength)
    assert "as many tokens as classes, 2; net.class_dim = 1 says" in capsys.readouterr().err


def test_training_data_without_a_label(tmp_path):
    data = {split: load_pairs(split) for split in ("train", "test", "validation")}
    data["train"]["labels"] = torch.full((60, 2), -100)
    with pytest.raises(InputError, match="none of the 60 training examples has a label"):
        small(tmp_path, methods={"Vanilla": Vanilla()}, data=data, net=TaggerNet, class_dim=-1)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("text,label\nfine,2\n", "row 2: expected a sentence and a label (0 … 1), found '2'"),
        ("words,label\nfine,1\n", "the first line must name the columns 'text' and 'label'"),
        ("", "found no rows"),
        (None, "cannot be read (No such file or directory); paths of files start in the working directory"),
    ],
)
def test_bad_files_of_sentences(tmp_path, monkeypatch, file, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.toml").write_text(RECIPE.format(module=__name__))
    if file is not None:
        (tmp_path / "other.csv").write_text(file)
    with pytest.raises(InputError) as caught:
        run_study(load_recipe("recipe.toml"), "out", device="cpu", progress=False)
    assert message in str(caught.value)
    assert not (tmp_path / "out" / "models").exists()


def test_a_study_grows_by_seeds(tmp_path):
    """What is added later is what a new study finds."""
    given = {
        "data": load_sentences,
        "net": TextNet,
        "encode": encode,
        "methods": {"SVI": SVI_AVUC},
        "shifts": ["typos"],
    }
    small(tmp_path / "a", **given, seeds=[0]).close()
    grown = small(tmp_path / "a", **given, seeds=[0, 1])
    assert repr(grown.rows()) == repr(small(tmp_path / "b", **given, seeds=[0, 1]).rows())


@pytest.mark.parametrize("empty", ["first", "all but one"])
def test_pixels_without_any_label(tmp_path, empty):
    """Images that have no label at all, among them those of the batch that is tried."""

    def load(split):
        images, labels = load_pixels(split)
        labels[:10] = 255
        if empty == "all but one":
            labels[1:] = 255
            labels[0] = torch.arange(12) % 2
        return images, labels

    if empty == "first":
        store = small(tmp_path, data=load, net=pixel_net, methods={"V": Vanilla(), "SVI": SVI_AVUC}, ignore_index=255)
        assert dict(store.select("SELECT method || shift, rows FROM cells"))["Vclean"] == 50 * 12 * 11
    else:
        with pytest.raises(InputError, match="none of the 20 held-out examples has a label"):
            small(tmp_path, data=load, net=pixel_net, methods={"V": Vanilla()}, ignore_index=255)


@pytest.mark.gpu
# a network that has all 20 held-out examples right has no best temperature
@pytest.mark.filterwarnings("ignore:.*has no minimum inside:avuc.calibration.CalibrationWarning")
def test_on_a_gpu(tmp_path):
    """Mappings, sentences and pixels; the user's shift does not know about devices."""
    for name, given in {
        "table": {"data": load_table, "net": TableNet, "shifts": [blur]},
        "text": {"data": load_sentences, "net": TextNet, "encode": encode, "shifts": ["typos", shout]},
        "pixels": {"data": load_pixels, "net": pixel_net, "ignore_index": 255, "shifts": ["fog"]},
    }.items():
        here = values(small(tmp_path / f"{name}-cpu", **given))
        there = values(small(tmp_path / f"{name}-gpu", **given, device="cuda"))
        assert here.keys() == there.keys()
        for key, value in here.items():
            if key[0] == "Vanilla" and key[4] == "accuracy":
                assert there[key] == pytest.approx(value, abs=0.1), (name, key)


def test_every_method_takes_a_mapping(tmp_path):
    """Trained and evaluated on tokens of sentences, through the network's keyword arguments."""
    methods = {name: kind() for name, kind in ALL_METHODS.items()}
    methods |= {"ensemble": Ensemble(2), "swag": SWAG(start=0.2)}
    store = small(tmp_path, data=load_sentences, net=TextNet, encode=encode, methods=methods, shifts=[])
    assert len(store.done()) == 2 * len(ALL_METHODS)
    accuracy = {key[0]: value for key, value in values(store).items() if key[2] == "clean" and key[4] == "accuracy"}
    assert all(accuracy[name] > 0.9 for name in ("vanilla", "ensemble", "dropout", "swag"))
    euc = {"method": Vanilla(), "objective": Objective("euc")}
    with pytest.raises(InputError, match="the objective euc needs a network that takes one tensor"):
        small(tmp_path, data=load_sentences, net=TextNet, encode=encode, methods={"euc": euc})


def bert(num_classes):
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return BertForSequenceClassification(
        BertConfig(vocab_size=12, max_position_embeddings=8, num_labels=num_classes, **sizes)
    )


def test_hugging_face_network(tmp_path):
    pytest.importorskip("transformers")
    methods = {"Vanilla": Vanilla(), "SVI-AvUC": SVI_AVUC}
    store = small(tmp_path, data=load_sentences, net=bert, encode=encode, methods=methods, shifts=["typos"])
    found = values(store)
    assert found["Vanilla", 0, "clean", 0, "accuracy"] > 0.9 > found["Vanilla", 0, "typos", 5, "accuracy"]


def far_table(split):
    numbers = 30 + torch.randn(50, 2, generator=torch.Generator().manual_seed(5))
    return {"left": numbers[:, :1], "right": numbers[:, 1:], "labels": torch.full((50,), 9)}


def far_pixels(split):
    return torch.full((9, 12, 12, 3), 255, dtype=torch.uint8), torch.zeros(9, dtype=torch.int64)


@pytest.mark.parametrize(
    ("data", "net", "far", "rows"),
    [(load_table, TableNet, far_table, 50), (load_pixels, pixel_net, far_pixels, 9 * 144)],
)
def test_own_data_of_another_kind(tmp_path, data, net, far, rows):
    """Out-of-distribution data from a function; its labels may be anything."""
    given = {"data": data, "net": net, "methods": {"V": Vanilla(), "SVI": SVI_AVUC}, "ignore_index": 255}
    store = small(tmp_path, **given, ood=[far])
    found = values(store)
    name = f"ood:{far.__name__}"
    assert dict(store.select("SELECT method || shift, rows FROM cells"))[f"V{name}"] == rows
    assert 0 <= found["V", 0, name, 0, "auroc"] <= 1
    assert ("V", 0, name, 0, "accuracy") not in found
    with pytest.raises(InputError, match=r"study.ood: .* but the test data are"):
        small(tmp_path / "b", **given, ood=[load_pixels if net is TableNet else load_table])
    assert not (tmp_path / "b" / "models").exists()
