"""docs/api.md lists every public name, and there are not too many of them."""

from __future__ import annotations

import ast
from pathlib import Path

import make_api
import pytest

import avuc

SOURCE = Path(avuc.__file__).parent
# modules at the top of the package that are public, besides packages
PUBLIC_MODULES = {"posterior.py", "uncertainty.py", "train.py"}


def has_all(path: Path) -> bool:
    return any(
        isinstance(node, ast.Assign) and "__all__" in [getattr(name, "id", "") for name in node.targets]
        for node in ast.parse(path.read_text(encoding="utf-8")).body
    )


def test_the_page_is_up_to_date() -> None:
    assert make_api.PAGE.read_text(encoding="utf-8") == make_api.page(), "run: python docs/make_api.py"


def test_not_too_many_public_names() -> None:
    """Adapters to other libraries are counted apart: who does not use the library never meets them."""
    core, adapters = 0, 0
    for module in make_api.public_modules():
        if module.__name__.split(".")[1:2] and module.__name__.split(".")[1] in avuc._ADAPTERS:
            adapters += len(vars(module)["__all__"])
        else:
            core += len(vars(module)["__all__"])
    assert core < 200
    assert adapters < 40


def test_only_packages_and_the_public_modules_have_an_all() -> None:
    wrong = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if has_all(path) and path.name != "__init__.py" and str(path.relative_to(SOURCE)) not in PUBLIC_MODULES
    ]
    assert wrong == []


@pytest.mark.parametrize("module", make_api.public_modules(), ids=lambda module: module.__name__)
def test_public_functions_and_classes_explain_their_arguments(module: object) -> None:
    """A docstring of a public function or class with arguments has an `Args:` block and an example."""
    missing = [name for name in make_api.own_names(module) if not make_api.is_explained(module, name)]
    assert missing == []
