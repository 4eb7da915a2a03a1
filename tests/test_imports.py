"""The direction of imports between rooms, computed from the source: function-level imports count as well."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import avuc

SOURCE = Path(avuc.__file__).parent

# A room may import rooms of earlier lines, and rooms named before it on its own line.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("core",),
    ("uncertainty", "predictions", "posterior", "losses"),
    ("nets", "bayes", "metrics", "calibration", "conformal", "shifts", "data"),
    ("methods", "prediction"),
    ("training", "evaluation"),
    ("plot", "deploy"),
    ("sklearn", "torchmetrics", "lightning", "transformers", "trackers"),
    ("study",),
    ("report",),
    ("cli",),
)
ORDER = {room: place for place, room in enumerate(room for layer in LAYERS for room in layer)}
# The same inside a room that has rooms of its own.
INSIDE = {
    "avuc.evaluation.files": (
        *("layout", "messages", "names", "sources", "columns", "formats", "decision", "reading", "find"),
        *("group_column", "match_classes", "score_file", "padding", "row_groups", "write", "multilabel", "read"),
    ),
    "avuc.study": (
        *("own", "recipe", "grid", "net", "data", "store", "evaluation", "cost", "worker", "trial", "engines"),
        *("from_python", "demo"),
    ),
}
# `gpu` uses any room below `study`; no room imports it: `avuc.core.accelerators` looks for it by name.
GPU_USES = frozenset(room for layer in LAYERS[:5] for room in layer)
# The front of the package: these only forward to public names, or start the command.
FRONT = {"avuc", "avuc.__main__", "avuc.train"}


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and module of every import of avuc in the file, wherever it stands; type-checking blocks included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] == "avuc")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            if node.module == "avuc":
                yield from ((node.lineno, f"avuc.{alias.name}") for alias in node.names)
            elif node.module and node.module.startswith("avuc."):
                for alias in node.names:  # `from avuc.package import module` imports the module
                    inner = f"{node.module}.{alias.name}"
                    yield node.lineno, inner if inner in MODULES else node.module


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def edges() -> Iterator[tuple[str, str, str]]:
    """(room, imported room, "file:line imports module") for every import that crosses rooms."""
    for module, path in MODULES.items():
        if module in FRONT:
            continue
        for line, target in imports_of(path):
            if target in ("avuc.__version__", "avuc._old_names"):
                continue
            if room_of(target) != room_of(module):
                yield room_of(module), room_of(target), f"{path.relative_to(SOURCE)}:{line} imports {target}"


def test_every_room_has_its_place() -> None:
    rooms = {room_of(module) for module in MODULES if module not in FRONT} - {"_old_names"}
    assert rooms == {*ORDER, "gpu"}


def test_no_import_against_the_direction() -> None:
    wrong = []
    for room, target, text in edges():
        if room == "gpu":
            allowed = target in GPU_USES
        else:
            allowed = target in ORDER and ORDER[target] < ORDER[room]
        if not allowed:
            wrong.append(text)
    assert not wrong, "imports against the direction:\n" + "\n".join(wrong)


@pytest.mark.parametrize("package", INSIDE)
def test_the_direction_inside_a_room(package: str) -> None:
    depth = package.count(".") + 1
    inside = {module: path for module, path in MODULES.items() if module.startswith(f"{package}.")}
    assert {module.split(".")[depth] for module in inside} == set(INSIDE[package])
    order = {name: position for position, name in enumerate(INSIDE[package])}
    wrong = [
        f"{path.relative_to(SOURCE)}:{line} imports {target}"
        for module, path in inside.items()
        for line, target in imports_of(path)
        if target in inside and order[target.split(".")[depth]] > order[module.split(".")[depth]]
    ]
    assert not wrong, "imports against the direction:\n" + "\n".join(wrong)


def test_no_cycle_between_modules() -> None:
    """Also within a room: no module reaches itself through imports at the top of files or inside functions."""
    graph = {
        module: {target for _, target in imports_of(path) if target in MODULES and target not in FRONT}
        for module, path in MODULES.items()
        if module not in FRONT
    }
    state: dict[str, int] = {}

    def visit(module: str, trail: list[str]) -> None:
        if state.get(module) == 2:
            return
        if state.get(module) == 1:
            pytest.fail("import cycle: " + " -> ".join([*trail[trail.index(module) :], module]))
        state[module] = 1
        for target in sorted(graph[module]):
            visit(target, [*trail, module])
        state[module] = 2

    for module in graph:
        visit(module, [])
