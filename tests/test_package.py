"""What `import avuc` promises: the public names, and nothing but torch and NumPy."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import avuc

SOURCE = Path(avuc.__file__).parent
ROOT = Path(__file__).parent.parent

# Optional packages are hidden from the import system, as on a machine that has only torch and NumPy.
BARE = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {hidden!r}:
            raise ImportError(f"{{name}} is hidden")
sys.meta_path.insert(0, Hide())
import avuc
for name in avuc.__all__:
    getattr(avuc, name)
"""
HIDDEN = {
    "scipy",
    "sklearn",
    "matplotlib",
    "pandas",
    "pyarrow",
    "safetensors",
    "PIL",
    "mlxtend",
    "ray",
    "torchvision",
    "torchmetrics",
    "lightning",
    "transformers",
    "onnx",
    "onnxruntime",
    "mlflow",
    "wandb",
    "tensorboard",
}


def test_every_public_name_resolves() -> None:
    for name in avuc.__all__:
        assert getattr(avuc, name) is not None
    assert set(avuc.__all__) <= set(dir(avuc))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = avuc.nonsense


def test_lazy_names_are_the_typed_ones() -> None:
    """The table that loads names and the imports that type checkers read say the same."""
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    typed = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and re.match(r"avuc\.[a-z]", node.module):
            typed.update({alias.name: node.module.removeprefix("avuc.") for alias in node.names})
    assert typed == avuc._HOME


# what a user writes -> the extra that the message must name
ADAPTERS = {
    "import avuc.sklearn": "sklearn",
    "import avuc.torchmetrics": "torchmetrics",
    "import avuc.lightning": "lightning",
    "import avuc.transformers": "transformers",
    "from avuc.trackers import tensorboard; tensorboard('runs')": "tensorboard",
    "from avuc.trackers import mlflow; mlflow()": "mlflow",
    "from avuc.trackers import wandb; wandb()": "wandb",
    "import avuc.plot; avuc.plot.reliability([[0.9, 0.1]], [0])": "report",
    "from avuc import Predictions; Predictions([[0.9, 0.1]], [0]).to_frame()": "pandas",
}
# each prints one line if it fails as promised; anything else ends the process with a traceback
TRY_ADAPTERS = """
from avuc.core.errors import MissingExtra
for code in {codes!r}:
    try:
        exec(code)
    except MissingExtra as error:
        print(error)
    else:
        raise AssertionError(code)
"""


def test_needs_torch_and_numpy_only_and_every_adapter_names_its_extra_in_one_line(tmp_path: Path) -> None:
    code = BARE.format(hidden=HIDDEN) + TRY_ADAPTERS.format(codes=list(ADAPTERS))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(ADAPTERS)
    for line, extra in zip(lines, ADAPTERS.values(), strict=True):
        assert line.endswith(f"pip install 'avuc[{extra}]'")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(ADAPTERS.values()) <= set(extras)
    assert not list(tmp_path.iterdir())


def test_import_does_not_load_torch() -> None:
    """So that `avuc --help` answers at once."""
    code = "import sys, avuc, avuc.cli; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_version_is_the_installed_one() -> None:
    assert avuc.__version__ == importlib.metadata.version("avuc")


def test_kernel_sources_are_package_data() -> None:
    """Each source that a launcher names is found the way that an installed package finds it."""
    from avuc.gpu.kernels.build import source_of

    named = {
        text
        for path in (SOURCE / "gpu" / "kernels").glob("*.py")
        for text in re.findall(r'"(\w+\.cuh?)"', path.read_text(encoding="utf-8"))
    }
    assert named == {path.name for path in (SOURCE / "gpu" / "kernels").glob("*.cu*")} != set()
    for name in named:
        assert source_of(name).strip()


def test_wheel_and_sdist_hold_what_they_need() -> None:
    """hatchling takes whole folders: all of the package, and in the sdist what tests and documents read."""
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    assert targets["wheel"] == {"packages": ["src/avuc"]}
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    needed = {"src", "tests", "docs", "examples", "benchmarks", "reproduction"}
    assert needed <= folders & set(targets["sdist"]["include"])
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    assert not [line for line in ignored if line.endswith((".cu", ".cuh", ".toml"))]  # hatchling leaves these out


def test_no_module_has_outgrown_one_job() -> None:
    for path in SOURCE.rglob("*.py"):
        lines = len(path.read_text().splitlines())
        assert lines <= 320, f"{path.relative_to(SOURCE)} has {lines} lines"


def test_every_test_file_mirrors_a_room() -> None:
    """tests/ mirrors src/avuc/; surprises/ tests the whole package from outside, docs/ the documentation."""
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir()} | {"__pycache__", "docs", "surprises"}
    folders = {path.name for path in Path(__file__).parent.iterdir() if path.is_dir()}
    assert folders <= rooms


DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")


def test_the_design_page_names_every_room() -> None:
    """Each folder and module at the top of the package is in the tree, as NAME/, NAME.py or NAME beside another."""
    tree = DESIGN.partition("## Packages")[2].partition("## ")[0]
    top = [path for path in SOURCE.iterdir() if path.suffix == ".py" or (path.is_dir() and path.name != "__pycache__")]
    missing = [path.name for path in top if not re.search(rf"(?<!\w){re.escape(path.name)}(?!\w)", tree)]
    assert missing == []


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("reference/recipes.md", "study.recipe.sections.DataConfig"),
        ("reference/recipes.md", "study.recipe.sections.NetConfig"),
        ("reference/recipes.md", "study.recipe.other_data.OtherData"),
        ("reference/recipes.md", "study.recipe.config.Recipe"),
        ("reference/recipes.md", "study.recipe.config.MethodConfig"),
        ("reference/recipes.md", "study.recipe.sections.StudySettings"),
        ("reference/training.md", "training.settings.TrainSettings"),
    ],
)
def test_the_pages_name_every_setting(page: str, name: str) -> None:
    module, _, kind = name.rpartition(".")
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    fields = dataclasses.fields(getattr(importlib.import_module(f"avuc.{module}"), kind))
    missing = [field.name for field in fields if not re.search(rf"\b{field.name}\b", text)]
    assert missing == []


def test_the_command_page_has_every_option_of_a_study() -> None:
    from avuc.cli.command import Parser
    from avuc.cli.study import COMMAND

    parser = Parser()
    COMMAND.arguments(parser)
    text = (ROOT / "docs" / "reference" / "command.md").read_text(encoding="utf-8").partition("`avuc study` in full")[2]
    options = {option for action in parser._actions for option in action.option_strings} - {"-h", "--help"}
    assert options == set(re.findall(r"`(--[a-z-]+)", text))


def test_the_command_page_has_every_option_of_evaluate() -> None:
    from avuc.cli.command import Parser
    from avuc.cli.evaluate import COMMAND

    parser = Parser()
    COMMAND.arguments(parser)
    pages = ("guide/command.md", "reference/command.md", "reference/files.md")
    text = "".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in pages)
    options = {action.option_strings[0] for action in parser._actions if action.option_strings} - {"-h"}
    assert options <= set(re.findall(r"(--[a-z-]+)", text))


@pytest.mark.parametrize("name", ["train", "study", "metrics", "evaluation", "losses", "calibration"])
def test_packages_load_when_they_are_first_used(name: str, fresh_python: Any) -> None:
    """`import avuc; avuc.train.fit_calibrated` works without a second import, and `import avuc` alone loads nothing."""
    code = f"import sys, avuc; assert 'avuc.{name}' not in sys.modules; assert avuc.{name}.__name__ == 'avuc.{name}'"
    fresh_python(code).check_returncode()


def test_the_function_predict_is_not_hidden_by_its_room(fresh_python: Any) -> None:
    code = "import avuc, avuc.prediction, avuc.prediction.predictor; assert callable(avuc.predict)"
    fresh_python(code).check_returncode()
