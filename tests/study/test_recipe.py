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
from avuc.methods import METHODS, Objective
from avuc.study import grid
from avuc.study.grid import Plan
from avuc.study.recipe import keys, other_data, portable, tables, toml
from avuc.study.recipe import load as module
from avuc.study.recipe import parser as config_parser
from avuc.study.recipe.load import IN_REPOSITORY, Recipe, load_recipe, parse_recipe, recipe_names
from avuc.study.store import recipe as stored_recipe
from avuc.study.store.recipe import DEFAULT_BETA, StoredRecipe

MORE = Path(__file__).parents[2] / "reproduction" / "recipes"
SMALL = '[[methods]]\nname = "A"\nmethod = "vanilla"\n'


def test_packaged_recipes_are_there():
    assert {"demo", "cifar10-paper", "cifar10-code", "cifar10-best", "imagenet-paper"} <= set(recipe_names())


@pytest.mark.parametrize("name", [*recipe_names(), *sorted(MORE.glob("*.toml"))], ids=str)
def test_round_trip(name, capsys):
    first = load_recipe(name)
    assert not capsys.readouterr().err, "a recipe of ours has an old key"
    assert parse_recipe(first.to_toml()) == parse_recipe(first.stored_text()) == first
    # arguments of a method are its own: SWAG has a `start`
    texts = [re.sub(r"method = \{.*?\}", "", text) for text in (first.to_toml(), first.stored_text())]
    written, stored = (set(re.findall(r"\w+(?= = )", text)) for text in texts)
    for table in keys.RENAMED.values():
        assert not written & set(table)
        assert not stored & set(table.values())


@pytest.mark.parametrize("name", IN_REPOSITORY)
def test_a_recipe_that_is_not_shipped_any_more(name):
    assert name not in recipe_names()
    assert (MORE / f"{name}.toml").is_file()
    message = f"{name} is not shipped any more; it is reproduction/recipes/{name}.toml in the repository"
    with pytest.raises(InputError) as caught:
        load_recipe(name)
    assert str(caught.value) == message


OLD = """
[study]
severities = [1]
[data]
validation = 10
rehearsal = true
[train]
at_once = 3
[[methods]]
name = "A"
method = "vanilla"
[[methods]]
name = "B"
of = "A"
samples = 2
[[methods]]
name = "C"
method = "svi"
start = "A"
train = { at_once = 5 }
[[methods]]
name = "D"
of = "C"
calibrator = "temperature"
"""


@pytest.mark.parametrize("load", [module.load_recipe, module.load_training])
def test_a_recipe_that_is_not_there_names_its_neighbours(load, tmp_path):
    """A path was compared with the names of the recipes that come with avuc."""
    with pytest.raises(InputError, match=r"\(No such file or directory\); give a .toml file$"):
        load(tmp_path / "study.toml")
    (tmp_path / "recipe.toml").write_text("")
    hint = f"did you mean '{tmp_path}/recipe.toml'\\? There are {tmp_path}/recipe.toml$"
    with pytest.raises(InputError, match=hint):
        load(tmp_path / "study.toml")


def test_old_keys_are_read_and_named_once(tmp_path, capsys):
    (tmp_path / "old.toml").write_text(OLD)
    new = OLD
    for old, now in [pair for table in keys.RENAMED.values() for pair in table.items()]:
        new = new.replace(f"{old} = ", f"{now} = ")
    assert load_recipe(tmp_path / "old.toml") == parse_recipe(new)
    said = capsys.readouterr().err.splitlines()
    pairs = (("rehearsal", "evaluate_on_validation"), ("at_once", "models_per_step"), ("of", "reuse_model"))
    assert said == [
        f"avuc: {tmp_path / 'old.toml'}: {old!r} is now {now!r}; the old key still works"
        for old, now in (*pairs, ("start", "init_from"))
    ]


def test_an_old_key_in_a_change(capsys):
    assert load_recipe("cifar10-paper", ["methods.SVI-TS.of=Vanilla"]).method("SVI-TS").reuse_model == "Vanilla"
    assert "'of' is now 'reuse_model'; the old key still works" in capsys.readouterr().err
    assert load_recipe("cifar10-paper", ["data.released=c"]).data.corruptions_dir == "c"


def test_both_names_of_a_key_are_refused():
    with pytest.raises(
        InputError, match=r"r\.toml: methods\.B: 'of' is the old name of 'reuse_model'; give one of them"
    ):
        parse_recipe(OLD.replace('of = "A"', 'of = "A"\nreuse_model = "A"'), "r.toml")


def test_old_attributes_are_still_there():
    recipe = parse_recipe(OLD)
    assert (recipe.row("B").of, recipe.row("C").start, recipe.row("A").as_given) == ("A", "A", False)
    assert (recipe.data.rehearsal, recipe.data.released) == (True, "")


@pytest.mark.parametrize("name", [*recipe_names(), *sorted(MORE.glob("*.toml"))], ids=str)
def test_a_stored_recipe_says_the_same_without_torch(name):
    recipe = load_recipe(name, ["data.root=/home/somebody/data"])
    stored = StoredRecipe.parse(recipe.stored_text())
    plan = Plan(recipe)
    assert [method.name for method in stored.methods] == [method.name for method in recipe.methods]
    for method, full in zip(stored.methods, recipe.methods, strict=True):
        assert (method.reuse_model, stored.seeds(method)) == (full.reuse_model, recipe.seeds(full))
        assert method.kind == ("" if full.method is None else full.method.name)
        assert (method.objective, method.beta) == (full.objective.kind, full.objective.beta)
        assert method.calibrator == (full.calibrator.kind if full.calibrator else "")
    assert stored.missing(set()) == plan.evaluations
    done = {(method.name, stored.seeds(method)[0], "clean", 0) for method in stored.methods}
    assert stored.missing(done) == plan.evaluations - len(done)
    assert stored.data.evaluate_on_validation == recipe.data.evaluate_on_validation
    assert parse_recipe(stored.to_toml()) == parse_recipe(toml.document(portable.portable_tables(recipe.tables())))
    assert "somebody" not in stored.to_toml()


def test_the_default_beta_of_a_stored_recipe():
    assert Objective().beta == DEFAULT_BETA


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[study]", "[studi]"), "study.toml: study: expected a table"),
        (('name = "tiny"', "name = 3"), "study.toml: study.name: expected text, found 3"),
        (("seeds = [0]", 'seeds = ["x"]'), r"study.toml: study.seeds\[0\]: expected a whole number"),
        (("[[methods]]", "[methods]"), "study.toml: methods: expected at least one"),
        (('method = "vanilla"', ""), "has neither a method nor another method's model"),
        (("[study]", "[study"), "study.toml: its recipe is not valid TOML"),
    ],
)
def test_a_bad_stored_recipe_is_one_line(change, message):
    text = '[study]\nname = "tiny"\nseeds = [0]\nsamples = 2\nshifts = []\nseverities = []\n'
    text += '[data]\nsource = "npz"\n[net]\nname = "mlp"\n' + SMALL
    assert StoredRecipe.parse(text).missing(set()) == 2
    with pytest.raises(InputError, match=message):
        StoredRecipe.parse(text.replace(*change), "study.toml")


def test_paper_is_appendix_b():
    recipe = load_recipe("cifar10-paper")
    train = recipe.train
    assert (train.optimizer, train.epochs, train.learning_rate, train.batch_size) == ("adam", 200, 1.189e-3, 107)
    assert dict(zip(train.milestones, train.factors, strict=True)) == {80: 0.1, 120: 0.01, 160: 0.001, 180: 0.0005}
    assert (train.pad, train.flip, recipe.study.samples, recipe.data.validation) == (4, True, 128, 5000)
    assert len(recipe.study.shifts) == 16
    assert recipe.study.severities == (1, 2, 3, 4, 5)
    avuc = recipe.method("SVI-AvUC").objective
    assert (avuc.kind, avuc.beta, avuc.variant, avuc.kl_weight) == ("avuc", 3.0, "paper", 1.0)
    radial = recipe.method("Radial BNN").train
    assert (radial.learning_rate, radial.batch_size, radial.epochs) == (1e-3, 256, 200)
    imagenet = load_recipe("imagenet-paper")
    assert (imagenet.train.optimizer, imagenet.train.epochs, imagenet.train.learning_rate) == ("sgd", 50, 1e-3)
    assert (imagenet.train.momentum, imagenet.train.weight_decay, imagenet.train.batch_size) == (0.9, 1e-4, 96)
    assert imagenet.method("SVI").method == METHODS["svi"](moped=True, delta=0.5)
    assert imagenet.method("Vanilla").skip_training


def test_code_differs_from_paper_as_described():
    recipe = load_recipe("cifar10-code")
    row = recipe.method("SVI-AvUC")
    assert not row.objective.kl_gradient
    assert (row.objective.threshold, row.objective.warmup_epochs, row.init_from) == (None, 5, "")
    assert recipe.method("SVI").method == row.method
    assert len(recipe.seeds(row)) == len(recipe.seeds(recipe.method("SVI"))) == 10
    pretrained = load_recipe(MORE / "cifar10-code-pretrained.toml").method("SVI-AvUC")
    assert (pretrained.objective.threshold, pretrained.objective.warmup_epochs) == (1.0, 0)
    assert pretrained.init_from == "Vanilla"
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
        ('study.shifts=["fogg"]', r"study: shifts: no shift 'fogg'; did you mean 'fog'\?"),
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
        ("methods.SVI.init_from=SVI-TS", r"methods\.SVI\.init_from: no trained method 'SVI-TS'"),
        ("methods.SV.samples=1", r"with the name of a method; did you mean 'SVI'\?"),
        ("methods.SVI-AvUTS.calibrator.weigth=1", r"calibrator\.weigth: no such key; did you mean 'weight'\?"),
        ("methods.SVI-AvUTS.calibrator.bounds=[1]", r"calibrator\.bounds: expected a list of 2"),
        ("methods.SVI-AvUTS.reuse_model=Nobody", r"methods\.SVI-AvUTS\.reuse_model: no trained method 'Nobody'"),
        ("methods.SVI-AvUTS.seeds=[1]", r"belong to 'SVI'"),
        ("nothing", r"--set nothing: expected SECTION\.KEY=VALUE"),
        ("datas.root=x", r"datas: no such key; did you mean 'data'"),
        ('study.ood=[{nam="svhn"}]', r"study\.ood\[0\]\.nam: no such key; did you mean 'name'"),
        ('study.ood=[{path="a.npy"}]', r"study\.ood\[0\]: needs the key 'name'"),
        ('study.ood=[{name="svhn", first=-1}]', r"study\.ood\[0\]: expected a name and first ≥ 0"),
        ('study.ood=["a/svhn.npy", "svhn"]', r"study: ood: two sets have the same name"),
        ("study.ood=[3]", r"study\.ood\[0\]: expected text or a table, found 3"),
        ("study.precision=half", r"study\.precision: found 'half'; did you mean"),
    ],
)
def test_bad_change_is_one_line(change, message):
    with pytest.raises(InputError, match=message) as caught:
        load_recipe("cifar10-paper", [change])
    assert "\n" not in str(caught.value)


def test_a_row_with_dots_in_its_name():
    recipe = load_recipe(MORE / "beta-ablation.toml", ["methods.SVI-AvUC β=0.5.train.epochs=3"])
    assert recipe.method("SVI-AvUC β=0.5").train.epochs == 3
    assert recipe.method("SVI-AvUC β=5").train.epochs == 60


def test_changes_apply():
    changes = [
        "train.epochs=3",
        "study.seeds=[7, 8]",
        "methods.SVI.objective.beta=1.5",
        "methods.Vanilla.method.kind=svi",
    ]
    recipe = load_recipe("cifar10-paper", [*changes, "data.root=here", "study.name='my study'"])
    assert (recipe.train.epochs, recipe.study.seeds, recipe.data.root) == (3, (7, 8), "here")
    assert (recipe.method("SVI").objective.beta, recipe.study.name) == (1.5, "my study")
    assert recipe.method("Vanilla").method == METHODS["svi"]()
    # a row's own settings start from the changed ones
    assert (recipe.method("Radial BNN").train.epochs, recipe.method("Radial BNN").train.batch_size) == (3, 256)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = ", "r.toml: not valid TOML"),
        ("[studi]\nname = 'x'", "r.toml: studi: no such key; did you mean 'study'"),
        ("[study]\nname = 'x'", "expected at least one"),
        (SMALL + SMALL, "two methods have the same name"),
        (SMALL + "seeds = [0, 0]", r"methods\.A: seeds: expected different whole numbers"),
        (SMALL + "seeds = [9223372036854775808]", r"methods\.A: seeds: expected different whole numbers"),
        ("[study]\nshifts = ['fog', 'fog']\n" + SMALL, "study: shifts: expected different names"),
        ("[study]\nseverities = [1, 1]\n" + SMALL, "study: severities: expected different whole numbers"),
        ("[[methods]]\nname = ''\nmethod = 'svi'", "a method has an empty name"),
        ("[[methods]]\nname = 'A'\nreuse_model = 'B'\ncalibrator = 'temperature'", "methods.A.reuse_model: no trained"),
        (SMALL + "reuse_model = 'A'", "give either method"),
        (SMALL + "[[methods]]\nname = 'B'\nreuse_model = 'A'", "alone repeats that method"),
        ("[[methods]]\nmethod = 'svi'", r"methods\[0\]: needs the key 'name'"),
        ("methods = 3", r"methods: expected \[\[methods\]\] tables"),
        ("train = 3\n" + SMALL, "train: expected a table, found 3"),
        (SMALL + "skip_training = true", "needs net.weights"),
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
    assert recipe.method("A").method == METHODS[kind]()
    assert parse_recipe(recipe.to_toml()) == recipe


@pytest.mark.parametrize("kind", sorted(CALIBRATORS))
def test_every_calibrator_can_be_named(kind):
    option = "tolerance = 1e-5" if "tolerance" in CALIBRATORS[kind]().get_params() else None
    settings = ", ".join(filter(None, [f'kind = "{kind}"', option]))
    recipe = parse_recipe(f'{SMALL}[[methods]]\nname = "B"\nreuse_model = "A"\ncalibrator = {{ {settings} }}\n')
    made = recipe.method("B").calibrator.make()
    assert isinstance(made, CALIBRATORS[kind])
    assert option is None or made.tolerance == 1e-5
    assert (option is None) == (kind in ("isotonic", "histogram", "venn-abers"))
    assert parse_recipe(recipe.to_toml()) == recipe


def test_nested_member():
    text = (
        '[[methods]]\nname = "A"\nmethod = { kind = "ensemble", members = 3, member = { kind = "svi", delta = 0.2 } }\n'
    )
    recipe = parse_recipe(text)
    assert recipe.method("A").method == METHODS["ensemble"](members=3, member=METHODS["svi"](delta=0.2))
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
    for one in (config_parser, grid, keys, module, other_data, portable, stored_recipe, tables, toml):
        assert doctest.testmod(one).failed == 0


def test_the_recipe_of_the_documentation_reads():
    text = (Path(__file__).parents[2] / "docs" / "reference" / "recipes.md").read_text(encoding="utf-8")
    block = text[text.index("    [study]") : text.index("More keys:")]
    recipe = parse_recipe(textwrap.dedent(block), "recipes.md")
    assert [row.name for row in recipe.methods] == ["SVI", "SVI-AvUC", "SVI-AvUTS", "SVI, 8 samples"]
    named = re.findall(r"^\| (`.+`) \|", text[text.index("| recipe |") :], re.MULTILINE)[:5]
    assert set(re.findall(r"`(.+?)`", " ".join(named))) == set(recipe_names())


def test_the_short_recipe_of_the_guide_reads():
    text = (Path(__file__).parents[2] / "docs" / "guide" / "study.md").read_text(encoding="utf-8")
    block = text[text.index("    [study]") : text.index("`--set` changes any key")]
    recipe = parse_recipe(textwrap.dedent(block), "study.md")
    assert [row.name for row in recipe.methods] == ["SVI", "SVI-AvUC", "SVI + TS"]


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


def test_the_paper_recipes_train_together_where_they_can():
    """Few groups of models that share their steps: each further one is compiled again."""
    sizes = {}
    for name in ("cifar10-paper", "cifar10-ablation", "cifar10-code", "cifar10-code-pretrained", "cifar10-best"):
        plan = Plan(load_recipe(MORE / f"{name}.toml" if name in IN_REPOSITORY else name))
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
