"""Recipes: every packaged one reads and round-trips; wrong keys and types are one clear line."""

from __future__ import annotations

import doctest
import re
import textwrap
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avuc.calibration import CALIBRATORS
from avuc.core.errors import InputError
from avuc.methods import METHODS
from avuc.study import config as parts
from avuc.study import recipe as module
from avuc.study import tables, toml
from avuc.study.grid import Plan
from avuc.study.recipe import Recipe, load_recipe, parse_recipe, recipe_names

SMALL = '[[methods]]\nname = "A"\nmethod = "vanilla"\n'


def test_packaged_recipes_are_there():
    assert {"demo", "cifar10-paper", "cifar10-code", "cifar10-best", "imagenet-paper"} <= set(recipe_names())


@pytest.mark.parametrize("name", recipe_names())
def test_round_trip(name):
    first = load_recipe(name)
    assert parse_recipe(first.to_toml()) == first


def test_paper_is_appendix_b():
    recipe = load_recipe("cifar10-paper")
    train = recipe.train
    assert (train.optimizer, train.epochs, train.learning_rate, train.batch_size) == ("adam", 200, 1.189e-3, 107)
    assert dict(zip(train.milestones, train.factors, strict=True)) == {80: 0.1, 120: 0.01, 160: 0.001, 180: 0.0005}
    assert (train.pad, train.flip, recipe.study.samples, recipe.data.validation) == (4, True, 128, 5000)
    assert len(recipe.study.shifts) == 16
    assert recipe.study.severities == (1, 2, 3, 4, 5)
    avuc = recipe.row("SVI-AvUC").objective
    assert (avuc.kind, avuc.beta, avuc.variant, avuc.kl_weight) == ("avuc", 3.0, "paper", 1.0)
    radial = recipe.row("Radial BNN").train
    assert (radial.learning_rate, radial.batch_size, radial.epochs) == (1e-3, 256, 200)
    imagenet = load_recipe("imagenet-paper")
    assert (imagenet.train.optimizer, imagenet.train.epochs, imagenet.train.learning_rate) == ("sgd", 50, 1e-3)
    assert (imagenet.train.momentum, imagenet.train.weight_decay, imagenet.train.batch_size) == (0.9, 1e-4, 96)
    assert imagenet.row("SVI").method == METHODS["svi"](moped=True, delta=0.5)
    assert imagenet.row("Vanilla").as_given


def test_code_differs_from_paper_as_described():
    recipe = load_recipe("cifar10-code")
    row = recipe.row("SVI-AvUC")
    assert not row.objective.kl_gradient
    assert (row.objective.threshold, row.objective.warmup_epochs, row.start) == (None, 5, "")
    assert recipe.row("SVI").method == row.method
    assert len(recipe.seeds(row)) == len(recipe.seeds(recipe.row("SVI"))) == 10
    pretrained = load_recipe("cifar10-code-pretrained").row("SVI-AvUC")
    assert (pretrained.objective.threshold, pretrained.objective.warmup_epochs) == (1.0, 0)
    assert pretrained.start == "Vanilla"
    # ρ = −2
    assert row.method.initial_std == pytest.approx(0.126928, abs=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("train.epoch=3", r"cifar10-paper\.toml: train\.epoch: no such key; did you mean 'epochs'\?"),
        ("train.epochs=many", r"train\.epochs: expected a whole number, found 'many'"),
        ("train.epochs=2.5", r"train\.epochs: expected a whole number, found 2\.5"),
        ("train.epochs=true", r"train\.epochs: expected a whole number, found True"),
        ("train.optimizer=adm", r"train\.optimizer: found 'adm'; did you mean 'adam'\?"),
        ("train.epochs=0", r"train: train: epochs must be at least 1"),
        ("study.seeds=[0, 0]", r"study: seeds: expected different whole numbers"),
        ("study.seeds=3", r"study\.seeds: expected a list"),
        ('study.shifts=["fogg"]', r"study: shifts: 'fogg' is none; did you mean 'fog'\?"),
        ("study.severities=[6]", r"severities: expected some of 1 … 5"),
        ("net.name=resnet21", r"net: name: no net 'resnet21'; did you mean 'resnet20'\?"),
        ("data.validation=0", r"data: validation: temperatures and thresholds are learned there"),
        ("methods.SVI.method.kind=svii", r"methods\.SVI\.method: 'svii' is unknown; did you mean 'svi'\?"),
        (
            "methods.SVI.method.initial_sd=1",
            r"methods\.SVI\.method\.initial_sd: no such key; did you mean 'initial_std'",
        ),
        ("methods.SVI.objective.beta=x", r"methods\.SVI\.objective\.beta: expected a number, found 'x'"),
        ("methods.SVI.train.lr=1", r"methods\.SVI\.train\.lr: no such key"),
        ("methods.SVI.start=SVI-TS", r"methods\.SVI\.start: no trained row 'SVI-TS'"),
        ("methods.SV.samples=1", r"with the name of a row; did you mean 'SVI'\?"),
        ("methods.SVI-AvUTS.calibrator.weigth=1", r"calibrator\.weigth: no such key; did you mean 'weight'\?"),
        ("methods.SVI-AvUTS.calibrator.bounds=[1]", r"calibrator\.bounds: expected a list of 2"),
        ("methods.SVI-AvUTS.of=Nobody", r"methods\.SVI-AvUTS\.of: no trained row 'Nobody'"),
        ("methods.SVI-AvUTS.seeds=[1]", r"belong to 'SVI'"),
        ("nothing", r"--set nothing: expected SECTION\.KEY=VALUE"),
        ("datas.root=x", r"datas: no such key; did you mean 'data'"),
    ],
)
def test_bad_change_is_one_line(change, message):
    with pytest.raises(InputError, match=message) as caught:
        load_recipe("cifar10-paper", [change])
    assert "\n" not in str(caught.value)


def test_a_row_with_dots_in_its_name():
    recipe = load_recipe("beta-ablation", ["methods.SVI-AvUC β=0.5.train.epochs=3"])
    assert recipe.row("SVI-AvUC β=0.5").train.epochs == 3
    assert recipe.row("SVI-AvUC β=5").train.epochs == 60


def test_changes_apply():
    changes = [
        "train.epochs=3",
        "study.seeds=[7, 8]",
        "methods.SVI.objective.beta=1.5",
        "methods.Vanilla.method.kind=svi",
    ]
    recipe = load_recipe("cifar10-paper", [*changes, "data.root=here", "study.name='my study'"])
    assert (recipe.train.epochs, recipe.study.seeds, recipe.data.root) == (3, (7, 8), "here")
    assert (recipe.row("SVI").objective.beta, recipe.study.name) == (1.5, "my study")
    assert recipe.row("Vanilla").method == METHODS["svi"]()
    # a row's own settings start from the changed ones
    assert (recipe.row("Radial BNN").train.epochs, recipe.row("Radial BNN").train.batch_size) == (3, 256)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = ", "r.toml: not valid TOML"),
        ("[studi]\nname = 'x'", "r.toml: studi: no such key; did you mean 'study'"),
        ("[study]\nname = 'x'", "expected at least one"),
        (SMALL + SMALL, "two rows have the same name"),
        (SMALL + "seeds = [0, 0]", r"methods\.A: seeds: expected different whole numbers"),
        (SMALL + "seeds = [9223372036854775808]", r"methods\.A: seeds: expected different whole numbers"),
        ("[study]\nshifts = ['fog', 'fog']\n" + SMALL, "study: shifts: expected different names"),
        ("[study]\nseverities = [1, 1]\n" + SMALL, "study: severities: expected different whole numbers"),
        ("[[methods]]\nname = ''\nmethod = 'svi'", "a row has an empty name"),
        ("[[methods]]\nname = 'A'\nof = 'B'\ncalibrator = 'temperature'", "methods.A.of: no trained row 'B'"),
        (SMALL + "of = 'A'", "give either method"),
        (SMALL + "[[methods]]\nname = 'B'\nof = 'A'", "alone repeats that row"),
        ("[[methods]]\nmethod = 'svi'", r"methods\[0\]: needs the key 'name'"),
        ("methods = 3", r"methods: expected \[\[methods\]\] tables"),
        ("train = 3\n" + SMALL, "train: expected a table, found 3"),
        (SMALL + "as_given = true", "needs net.weights"),
        (SMALL + "train = 3", "methods.A.train: expected a table"),
    ],
)
def test_bad_text(text, message):
    with pytest.raises(InputError, match=message):
        parse_recipe(text, "r.toml")


def test_no_such_recipe(tmp_path):
    with pytest.raises(InputError, match=r"did you mean 'demo'\?"):
        load_recipe("deno")
    (tmp_path / "latin.toml").write_bytes(b"\xe9\xff")
    with pytest.raises(InputError, match="not UTF-8"):
        load_recipe(tmp_path / "latin.toml")


@pytest.mark.parametrize("kind", sorted(METHODS))
def test_every_method_can_be_named(kind):
    recipe = parse_recipe(f'[[methods]]\nname = "A"\nmethod = "{kind}"\n')
    assert recipe.row("A").method == METHODS[kind]()
    assert parse_recipe(recipe.to_toml()) == recipe


@pytest.mark.parametrize("kind", sorted(CALIBRATORS))
def test_every_calibrator_can_be_named(kind):
    recipe = parse_recipe(
        f'{SMALL}[[methods]]\nname = "B"\nof = "A"\ncalibrator = {{ kind = "{kind}", tolerance = 1e-5 }}\n'
    )
    made = recipe.row("B").calibrator.make()
    assert isinstance(made, CALIBRATORS[kind])
    assert made.tolerance == 1e-5
    assert parse_recipe(recipe.to_toml()) == recipe


def test_nested_member():
    text = (
        '[[methods]]\nname = "A"\nmethod = { kind = "ensemble", members = 3, member = { kind = "svi", delta = 0.2 } }\n'
    )
    recipe = parse_recipe(text)
    assert recipe.row("A").method == METHODS["ensemble"](members=3, member=METHODS["svi"](delta=0.2))
    assert parse_recipe(recipe.to_toml()) == recipe


@given(
    st.recursive(
        st.booleans()
        | st.integers(-(2**63), 2**63 - 1)
        | st.floats(allow_nan=False)
        | st.text(st.characters(codec="utf-8")),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_toml_values_survive(value):
    read = tomllib.loads(f"value = {toml.value(value)}")["value"]
    assert read == value
    assert repr(read) == repr(value)  # 1 and 1.0 and True are not the same


def test_doctests():
    for one in (module, parts, tables, toml):
        assert doctest.testmod(one).failed == 0


def test_the_recipe_of_the_documentation_reads():
    text = (Path(__file__).parents[2] / "docs" / "study.md").read_text(encoding="utf-8")
    block = text[text.index("    [study]") : text.index("`start = ")]
    recipe = parse_recipe(textwrap.dedent(block), "study.md")
    assert [row.name for row in recipe.methods] == ["SVI", "SVI-AvUC", "SVI-AvUTS", "SVI, 8 draws"]
    named = re.findall(r"^\| (`.+`) \|", text[text.index("| recipe |") :], re.MULTILINE)[:6]
    assert set(re.findall(r"`(.+?)`", " ".join(named))) == set(recipe_names())


def test_other_data_as_tables():
    change = 'study.ood=[{name="svhn", path="data/svhn.npy", first=10}, "cifar100", "data/dtd.npy", {name="mnist"}]'
    recipe = load_recipe("cifar10-paper", [change, "study.precision=float32"])
    assert [(other.name, other.path, other.first) for other in recipe.study.others] == [
        ("svhn", "data/svhn.npy", 10),
        ("cifar100", "", 0),
        ("dtd", "data/dtd.npy", 0),
        ("mnist", "", 0),
    ]
    assert [str(one) for one in Plan(recipe).sets[-4:]] == ["ood:svhn", "ood:cifar100", "ood:dtd", "ood:mnist"]
    assert parse_recipe(recipe.to_toml()) == recipe


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('study.ood=[{nam="svhn"}]', r"study\.ood\[0\]\.nam: no such key; did you mean 'name'"),
        ('study.ood=[{path="a.npy"}]', r"study\.ood\[0\]: needs the key 'name'"),
        ('study.ood=[{name="svhn", first=-1}]', r"study\.ood\[0\]: expected a name and first ≥ 0"),
        ('study.ood=["a/svhn.npy", "svhn"]', r"study: ood: two sets have the same name"),
        ("study.ood=[3]", r"study\.ood\[0\]: expected text or a table, found 3"),
        ("study.precision=half", r"study\.precision: found 'half'; did you mean"),
    ],
)
def test_bad_other_data_is_one_line(change, message):
    with pytest.raises(InputError, match=message) as caught:
        load_recipe("cifar10-paper", [change])
    assert "\n" not in str(caught.value)


def test_the_paper_recipes_train_together_where_they_can():
    """Few groups of models that share their steps: each further one is compiled again."""
    sizes = {}
    for name in ("cifar10-paper", "cifar10-ablation", "cifar10-code", "cifar10-code-pretrained", "cifar10-best"):
        plan = Plan(load_recipe(name))
        sizes[name] = [sum(plan.members(key) for key in group) for group in plan.groups(plan.models)]
    assert sizes == {
        "cifar10-paper": [10, 9, 1],
        "cifar10-ablation": [21, 2],
        "cifar10-code": [10, 10, 10],
        "cifar10-code-pretrained": [1, 2],
        "cifar10-best": [3, 1, 6],
    }


def test_frozen(recipe):
    assert isinstance(recipe, Recipe)
    with pytest.raises(AttributeError):
        recipe.study.samples = 3
    assert hash(recipe.train)
