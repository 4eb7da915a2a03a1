"""Own networks, data and shifts by import path: found, tried before anything is trained, and noticed when changed."""

from __future__ import annotations

import sys
import textwrap

import pytest
import torch

from avuc.cli import main
from avuc.core.errors import InputError
from avuc.study import Store, load_recipe, run_study
from avuc.study.data.own import forget
from avuc.study.own.code import bound, find, is_path
from avuc.study.own.digest import code_digest
from avuc.study.recipe.parser import parse_recipe

MODULE = '''
"""The parts of a study."""
import torch
from torch import nn

SIDE = 12


def load(split, count=150):
    generator = torch.Generator().manual_seed(0 if split == "train" else 1)
    labels = torch.randint(3, (count,), generator=generator)
    images = torch.randint(0, 60, (count, SIDE, SIDE, 1), generator=generator)
    for row, label in enumerate(labels):
        images[row, 4 * label : 4 * label + 4] += 150
    return images.to(torch.uint8), labels


def make_net(num_classes, hidden=8):
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, hidden), nn.ReLU(), nn.Linear(hidden, num_classes))


def rain(images, severity, generator):
    images[torch.rand(images.shape, generator=generator) < 0.1 * severity] = 255
    return images


def dim(images):
    return images // 2
'''

RECIPE = """
[study]
name = "mine"
samples = 2
shifts = ["own_parts:rain", "contrast"]
severities = [1, 5]

[data]
source = "own_parts:load"
validation = 40
options = { count = 130 }

[net]
name = "own_parts:make_net"
options = { hidden = 6 }

[train]
epochs = 3
batch_size = 30
learning_rate = 5e-3
milestones = []
factors = []
pad = 0
flip = false

[[methods]]
name = "Vanilla"
method = "vanilla"

[[methods]]
name = "TS"
reuse_model = "Vanilla"
calibrator = "temperature"

[[methods]]
name = "SVI-AvUC"
method = "svi"
objective = { kind = "avuc", variant = "paper", warmup_epochs = 1 }
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with the module; it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_parts.py").write_text(MODULE)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    yield tmp_path
    _forget()


def _forget() -> None:
    sys.modules.pop("own_parts", None)
    forget()


def rewrite(folder, old: str, new: str, file: str = "own_parts.py") -> None:
    """Change the user's file, as if the next command came from a new process."""
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    for cached in folder.glob("__pycache__/*"):
        cached.unlink()
    _forget()


def values(store) -> dict:
    return {row[:5]: row[5] for row in store.rows()}


def test_study_of_own_parts(folder, capsys):
    assert main(["study", "recipe.toml", "--out", "out", "--device", "cpu"]) == 0
    store = Store(folder / "out", create=False)
    found = values(store)
    assert len(store.done()) == 3 * (2 + 4)
    # the network learns where the bar is; rain hides it more and more
    accuracy = [found["Vanilla", 0, shift, level, "accuracy"] for shift, level in (("clean", 0), ("own_parts:rain", 5))]
    assert accuracy[0] > 0.9
    assert accuracy[0] >= accuracy[1]
    names = {name for (name,) in store.select("SELECT name FROM data")}
    assert {"code of own_parts:make_net", "code of own_parts:rain", "training", "clean"} <= names
    page = (folder / "out" / "report.html").read_text()
    assert "own_parts:rain" in page


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize(("engine", "device"), [("local", "cpu,cpu"), ("ray", "cpu")])
def test_same_results_in_other_processes(folder, engine, device):
    if engine == "ray":
        pytest.importorskip("ray")
    recipe = load_recipe("recipe.toml")
    one = run_study(recipe, folder / "one", device="cpu", progress=False)
    two = run_study(recipe, folder / "two", engine=engine, device=device, progress=False)
    assert repr(one.rows()) == repr(two.rows())


def test_own_shift_by_hand(folder):
    """What the study stores for an own shift is the accuracy on images that the function changed."""
    recipe = load_recipe("recipe.toml", ['study.shifts=["own_parts:dim"]', "study.severities=[3]"])
    store = run_study(recipe, folder / "out", device="cpu", progress=False)
    from avuc.study.grid import CLEAN, ModelKey, TestSet
    from avuc.study.worker import StudyWorker

    worker = StudyWorker(recipe, folder / "out", "cpu", progress=False)
    clean = worker.data.images(CLEAN)
    assert torch.equal(worker.data.images(TestSet("own_parts:dim", 3)).images, clean.images // 2)
    model = worker.posterior(ModelKey("Vanilla", 0)).net
    said = model((clean.images // 2).permute(0, 3, 1, 2) / 255).argmax(1)
    expected = (said == clean.labels).double().mean().item()
    assert values(store)["Vanilla", 0, "own_parts:dim", 3, "accuracy"] == pytest.approx(expected, abs=1e-12)


BROKEN = [
    ("def make_net(num_classes", "def make_nets(num_classes", "has no 'make_net'; did you mean 'make_nets'"),
    ("def make_net(num_classes", "def make_net(classes", "net: own_parts:make_net needs 'classes'"),
    ("hidden, num_classes)", "hidden, 7)", "returned (8, 7) for a batch of 8; the labels have 3 classes"),
    ("nn.Linear(SIDE * SIDE", "nn.Linear(99", "failed on a batch (8, 1, 12, 12): RuntimeError: mat1 and mat2"),
    (
        "    return nn.Sequential(",
        "    1 / 0\n    return nn.Sequential(",
        "ZeroDivisionError: division by zero (own_parts.py",
    ),
    ("    return nn.Sequential(", "    return list(", "net.name"),
    ("def load(split", "def load(part", "data: own_parts:load needs 'part', and avuc offers split"),
    ("return images.to(torch.uint8), labels", "return images.to(torch.uint8)", "there are no labels"),
    ("return images.to(torch.uint8), labels", "return None", "expected an avuc Dataset, a pair (inputs, labels)"),
    ("return images.to(torch.uint8), labels", "return images.to(torch.uint8), labels.float()", "class indices"),
    ("return images.to(torch.uint8), labels", "raise OSError('no disk')", "OSError: no disk (own_parts.py, line"),
    ("def load(split, count=150)", "def load(split)", "data.options: own_parts:load takes no 'count'"),
    ("def rain(images, severity", "def rain(images, level", "needs 'level', and avuc offers severity, generator"),
    (
        "    return images\n\n\ndef dim",
        "    return images[:, 1:]\n\n\ndef dim",
        "expected uint8 of shape (8, 12, 12, 1)",
    ),
    ("    return images\n\n\ndef dim", "    return None\n\n\ndef dim", "returned a NoneType; expected a tensor"),
    ("SIDE = 12", "SIDE = (12", "importing own_parts failed: SyntaxError"),
    ("import torch\n", "import torch\nimport not_there\n", "No module named 'not_there'"),
    ("nn.Linear(hidden, num_classes)", "nn.Linear(hidden, num_classes), nn.Softmax(-1)", "look like probabilities"),
]


@pytest.mark.parametrize(("old", "new", "message"), BROKEN, ids=[text[:40] for _, _, text in BROKEN])
def test_mistakes_are_one_line_before_training(folder, capsys, old, new, message):
    rewrite(folder, old, new)
    assert main(["study", "recipe.toml", "--out", "out", "--device", "cpu"]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error
    assert not (folder / "out" / "models").exists()
    assert not (folder / "out" / "study.sqlite").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("net.name=own_part:make_net", "net.name: no module 'own_part' in"),
        ("net.name=own_parts:SIDE", "own_parts:SIDE is a int; expected a function"),
        ("net.name=own_parts", "no net 'own_parts'"),
        ("net.name=own parts:net", "is no import path; expected module:function"),
        ("net.options.widht=3", "net.options: own_parts:make_net takes no 'widht'"),
        ("net.options=3", "net.options: expected a table"),
        ("data.size=3", "what your own function needs goes into data.options"),
        ("data.validation_split=test", "validation_split: 'test' is used already; name a third split"),
        ('study.shifts=["fogg"]', "no shift 'fogg'; did you mean 'fog'?"),
        ('study.shifts=["own_parts:fogg"]', "own_parts has no 'fogg'"),
    ],
)
def test_wrong_names(folder, capsys, change, message):
    assert main(["study", "recipe.toml", "--out", "out", "--device", "cpu", "--set", change]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error


def test_options_are_for_own_sources(folder):
    with pytest.raises(InputError, match="are for a source of your own"):
        load_recipe("demo", ["data.options.count=3"])


def test_recipe_text_round_trip(folder):
    recipe = load_recipe("recipe.toml")
    assert parse_recipe(recipe.to_toml()) == recipe
    assert parse_recipe(recipe.stored_text()) == recipe
    assert "options" not in load_recipe("demo").stored_text()  # version 0.1.0 reads it


def test_changed_code_is_noticed(folder):
    small = ['study.shifts=["own_parts:rain"]', "study.severities=[1]"]
    run_study(load_recipe("recipe.toml", small), folder / "out", device="cpu", progress=False).close()
    # comments, docstrings, layout and other functions do not count
    rewrite(folder, "def make_net(", "# the network\ndef make_net(")
    rewrite(folder, "def dim(images):", 'def dim(images):\n    """Half as bright."""')
    rewrite(folder, "// 2", "// 3")
    run_study(load_recipe("recipe.toml", small), folder / "out", device="cpu", progress=False).close()
    rewrite(folder, "nn.ReLU()", "nn.Tanh()")
    with pytest.raises(InputError, match=r"the code of own_parts:make_net has changed .* put the old code back"):
        run_study(load_recipe("recipe.toml", small), folder / "out", device="cpu", progress=False)
    rewrite(folder, "nn.Tanh()", "nn.ReLU()")
    rewrite(folder, "0.1 * severity", "0.2 * severity")
    with pytest.raises(InputError, match="the code of own_parts:rain has changed"):
        run_study(load_recipe("recipe.toml", small), folder / "out", device="cpu", progress=False)
    rewrite(folder, "0.2 * severity", "0.1 * severity")
    rewrite(folder, "+= 150", "+= 151")
    with pytest.raises(InputError, match="the data 'training' have changed"):
        run_study(load_recipe("recipe.toml", small), folder / "out", device="cpu", progress=False)


def test_exported_copy_names_no_folder_and_resumes(folder):
    changes = ['data.options={count = 130, where = "/home/ada/photos"}', "study.shifts=[]"]
    rewrite(folder, "def load(split, count=150)", "def load(split, count=150, where='')")
    run_study(load_recipe("recipe.toml", changes), folder / "out", device="cpu", progress=False).close()
    assert main(["study", "--export", "out", "--out", "copy"]) == 0
    text = (folder / "copy" / "recipe.toml").read_text()
    assert "<data>/photos" in text
    assert "/home/ada" not in text
    run_study(load_recipe("recipe.toml", changes), folder / "copy", device="cpu", progress=False).close()
    other = [changes[0].replace("photos", "pictures"), changes[1]]
    with pytest.raises(InputError, match=r"data\.options\.where was"):
        run_study(load_recipe("recipe.toml", other), folder / "copy", device="cpu", progress=False)


def test_dry_run(folder, capsys):
    assert main(["study", "recipe.toml", "--device", "cpu", "--dry-run"]) == 0
    assert "2 models to train" in capsys.readouterr().out


def test_digest_follows_what_a_function_uses(folder):
    def digest(text: str) -> str:
        (folder / "own_parts.py").write_text(textwrap.dedent(text))
        for cached in folder.glob("__pycache__/*"):
            cached.unlink()
        _forget()
        return code_digest(find("own_parts:f", "net.name"))

    base = digest("A = 1\nB = 2\ndef g():\n    return A\ndef f():\n    return g()\n")
    assert base == digest("A = 1\nB = 3\ndef g():\n    '''Doc.'''\n    return A  # one\n\ndef f():\n    return g()\n")
    assert base != digest("A = 4\nB = 2\ndef g():\n    return A\ndef f():\n    return g()\n")
    assert base != digest("A = 1\nB = 2\ndef g():\n    return A + 0\ndef f():\n    return g()\n")


def test_bound_gives_only_what_is_taken():
    def by_position(batch, severity, /, generator=None):
        return batch, severity, generator

    offered = {"severity": 3, "generator": "g"}
    assert bound(by_position, offered, {}, "", "", takes_batch=True)("b") == ("b", 3, "g")
    assert bound(lambda *rest: rest, offered, {}, "", "", takes_batch=True)("b") == ("b",)
    assert bound(lambda **rest: rest, offered, {"a": 1}, "", "")() == {"a": 1}
    assert bound(lambda severity: severity, offered, {"severity": 9}, "", "")() == 9
    with pytest.raises(InputError, match="its first one must be the batch"):
        bound(lambda *, severity: severity, offered, {}, "w", "p", takes_batch=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a.b:c.d", True), ("a:b", True), ("fog", False), ("a:", False), (":b", False), ("1a:b", False), ("a b:c", False)],
)
def test_is_path(text, expected):
    assert is_path(text) is expected


def test_own_network_on_data_of_avuc(folder):
    """A network and a shift of one's own on a data set that comes with avuc; the test images are not loaded twice."""
    changes = ["data.source=mnist5k", "data.options={}", "data.train_images=200", "data.test_images=60"]
    changes += ['study.shifts=["own_parts:rain"]', "study.severities=[5]", "train.epochs=1"]
    rewrite(folder, "SIDE = 12", "SIDE = 28")
    store = run_study(load_recipe("recipe.toml", changes), folder / "out", device="cpu", progress=False)
    assert len(store.done()) == 3 * 3
    rewrite(folder, "nn.ReLU()", "nn.Tanh()")
    with pytest.raises(InputError, match="the code of own_parts:make_net has changed"):
        run_study(load_recipe("recipe.toml", changes), folder / "out", device="cpu", progress=False)
