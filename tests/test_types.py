"""Public attributes have declared types, so that a type checker of a user knows them.

The full check takes a minute: `pyright --verifytypes avuc --ignoreexternal` (CONTRIBUTING.md).
"""

from __future__ import annotations

import ast
from pathlib import Path

import avuc

SOURCE = Path(avuc.__file__).parent


def declared(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> set[str]:
    """The names that a class or one of its bases annotates."""
    names = set()
    for item in ast.walk(node):
        if isinstance(item, ast.AnnAssign):
            names.add(getattr(item.target, "attr", getattr(item.target, "id", "")))
    for base in node.bases:
        parent = classes.get(getattr(base, "id", getattr(base, "attr", "")))
        if parent is not None and parent is not node:
            names |= declared(parent, classes)
    return names


def undeclared(method: ast.FunctionDef) -> set[str]:
    """The public attributes that a method sets without a type, other than to a parameter that has one."""
    typed = {one.arg for one in (*method.args.args, *method.args.kwonlyargs) if one.annotation is not None}
    names = set()
    for item in ast.walk(method):
        if isinstance(item, ast.Assign) and not (isinstance(item.value, ast.Name) and item.value.id in typed):
            targets = [one for target in item.targets for one in getattr(target, "elts", [target])]
            own = [one for one in targets if isinstance(one, ast.Attribute) and ast.unparse(one.value) == "self"]
            names |= {one.attr for one in own}
    return {name for name in names if not name.startswith("_")}


def missing(sources: dict[str, str]) -> list[str]:
    trees = {name: ast.parse(text) for name, text in sources.items() if "class " in text}
    found = [(name, node) for name, tree in trees.items() for node in tree.body if isinstance(node, ast.ClassDef)]
    classes = {node.name: node for _, node in found}
    return [
        f"{name}: {node.name}.{attribute}"
        for name, node in found
        for method in node.body
        if isinstance(method, ast.FunctionDef) and not node.name.startswith("_")
        for attribute in sorted(undeclared(method) - declared(node, classes))
    ]


def test_public_attributes_have_declared_types() -> None:
    files = {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    assert missing(files) == []


def test_a_missing_type_is_found() -> None:
    text = """
class Base:
    rate: float
class One(Base):
    def __init__(self, size: int, other):
        self.size = size
        self.rate = 1.0
        self.other = other
        self.a, self._b = 1, 2
        self.c: int = 3
    def run(self):
        self.late = 4
"""
    assert missing({"one.py": text}) == ["one.py: One.a", "one.py: One.other", "one.py: One.late"]
