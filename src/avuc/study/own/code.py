"""Code of your own in a study: a function by its import path ("my_package.nets:make_net"), or an object from Python."""

from __future__ import annotations

import importlib
import inspect
import os
import random
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from avuc.core.errors import InputError
from avuc.core.text import did_you_mean

_NAME = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
PATH = re.compile(f"{_NAME}:{_NAME}")
# whatever the user's code raises; a script may end Python
ANY_ERROR = (Exception, SystemExit)
# the module name in the paths of objects that were passed to `avuc.study.run`
OBJECT = "object"
_OBJECTS: dict[str, Any] = {}
_HERE = str(Path(__file__).parents[2])
# folders of the recipes that ran in this process; the last one is of the current recipe
_RECIPE_FOLDERS: list[str] = []
# folders of recipes that were added to Python's search path
_ADDED: list[str] = []


def is_path(name: str) -> bool:
    """Return whether a name in a recipe is an import path; names of avuc's own parts have no colon.

    >>> is_path("my_package.nets:make_net"), is_path("resnet20"), is_path("C:/data")
    (True, False, False)
    """
    return PATH.fullmatch(name) is not None


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Return the message for a name that is neither known nor an import path."""
    if ":" in name:
        return f"{name!r} is no import path; expected module:function, like my_package.parts:{what}"
    module, dot, function = name.rpartition(".")
    meant = f", such as {module}:{function}" if dot and is_path(f"{module}:{function}") else ""
    return f"no {what} {name!r}; {did_you_mean(name, known)}; your own is named module:function{meant}"


def find(path: str, where: str) -> Any:
    """Return the object that an import path names.

    Modules are searched for in the working directory, then in the folder of the recipe (`search_recipe_folder`), then
    among the installed packages.

    Args:
        path: "module:function"; after the colon there may be dots.
        where: the key of the recipe, for messages.

    >>> find("json:dumps", "net.name")([1])
    '[1]'
    """
    name, _, attributes = path.partition(":")
    if name == OBJECT:
        if path not in _OBJECTS:
            raise InputError(
                f"{where}: {path} was given to avuc.study.run as an object and is not here; run the same Python code, "
                "or name an import path"
            )
        return _OBJECTS[path]
    target: Any = _module(name, where)
    for attribute in attributes.split("."):
        if not hasattr(target, attribute):
            own = ((key, value) for key, value in vars(target).items() if getattr(value, "__module__", "") == name)
            public = [key for key, value in own if callable(value) and not key.startswith("_")]
            note = _hidden(name) or did_you_mean(attribute, public)
            raise InputError(f"{where}: {path}: {name} has no {attribute!r}; {note}")
        target = getattr(target, attribute)
    if not callable(target):
        raise InputError(f"{where}: {path} is a {type(target).__name__}; expected a function")
    return target


def search_recipe_folder(folder: str) -> None:
    """Also search for modules in the folder of a recipe, until this is called for another recipe.

    Args:
        folder: an absolute path; "" if the recipe does not come from a file.
    """
    for before in [added for added in _ADDED if added not in (folder, os.getcwd())]:
        _ADDED.remove(before)
        if before in sys.path:
            sys.path.remove(before)
    if folder in _RECIPE_FOLDERS:
        _RECIPE_FOLDERS.remove(folder)
    _RECIPE_FOLDERS.append(folder)


def _module(name: str, where: str) -> ModuleType:
    folders = list(dict.fromkeys([os.getcwd(), *(folder for folder in _RECIPE_FOLDERS[-1:] if folder)]))
    if folders[0] not in sys.path:
        sys.path.insert(0, folders[0])
    if folders[-1] not in sys.path:
        sys.path.insert(sys.path.index(folders[0]) + 1, folders[-1])
        _ADDED.append(folders[-1])
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise InputError(
                f"{where}: no module {error.name!r} in {' or '.join(folders)} or among the installed packages; correct "
                "the path, or put the module beside the recipe"
            ) from error
        raise InputError(f"{where}: importing {name} failed: {described(error)}; install that module") from error
    except ANY_ERROR as error:
        relative = isinstance(error, ImportError) and "relative import" in str(error)
        remedy = "; write it without the dots: from blocks import …, not from .blocks import …" if relative else ""
        raise InputError(f"{where}: importing {name} failed: {described(error)}{remedy}") from error
    # a study started from Python uses the modules that the user has imported, so only recipe files are checked
    if _RECIPE_FOLDERS and _RECIPE_FOLDERS[-1] and (home := _home(name)) in _RECIPE_FOLDERS and home not in folders:
        raise InputError(
            f"{where}: {name} was imported from {home}, for another recipe; run this one in a new Python process"
        )
    return module


def _hidden(name: str) -> str:
    """Return a note if the user's file has the name of a module that Python had imported before; else an empty text."""
    top = name.partition(".")[0]
    for folder in (os.getcwd(), *filter(None, _RECIPE_FOLDERS[-1:])):
        for file in (Path(folder, f"{top}.py"), Path(folder, top, "__init__.py")):
            if file.is_file() and _home(name) not in (folder, "?"):
                return f"this is a module in {_home(name)}, which hides {file}; rename your file"
    return ""


def _home(name: str) -> str:
    """Return the folder in which an imported module was found; "?" for one without a file."""
    file = getattr(sys.modules.get(name.partition(".")[0]), "__file__", None)
    return str(Path(file).parents[1 if Path(file).stem == "__init__" else 0]) if file else "?"


def register(value: Any, name: str, taken: Sequence[str] = ()) -> str:
    """Return a recipe's name for an object: its import path if it has one, else "object:NAME" in this process.

    Args:
        value: a function, a class, or any other object.
        name: for an object without a name of its own.
        taken: names of other objects.

    >>> import json
    >>> register(json.dumps, "net")
    'json:dumps'
    """
    module, title = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if module and title and module != "__main__" and is_path(f"{module}:{title}"):
        target: Any = sys.modules.get(module)
        for attribute in title.split("."):
            target = getattr(target, attribute, None)
        if target is value:
            return f"{module}:{title}"
    plain = title.rpartition(".")[2] if title else name
    plain = plain if plain.isidentifier() else name  # a lambda
    path = f"{OBJECT}:{plain}"
    path = next(
        candidate for candidate in (path, *(f"{path}_{n}" for n in range(2, len(taken) + 3))) if candidate not in taken
    )
    _OBJECTS[path] = value
    return path


def objects(paths: Iterable[str]) -> dict[str, Any]:
    """Return the registered objects of some paths, to send them to another process; see `restore`."""
    return {path: _OBJECTS[path] for path in paths if path in _OBJECTS}


def restore(registered: Mapping[str, Any]) -> None:
    """Make objects of another process known in this one."""
    _OBJECTS.update(registered)


def bound(
    function: Callable[..., Any],
    offered: Mapping[str, Any],
    options: Mapping[str, Any],
    where: str,
    path: str,
    *,
    takes_batch: bool = False,
) -> Callable[..., Any]:
    """Return the function with its arguments bound; call the result without arguments, or with a batch.

    Args:
        function: the user's function.
        offered: arguments that avuc offers, by name; those that the function does not name are left out.
        options: the user's own arguments; the function must take all of them.
        where: the table of the recipe, for messages.
        path: the function's name in the recipe, for messages.
        takes_batch: whether the first argument is a batch, under any name.

    >>> bound(lambda num_classes, width=8: (num_classes, width), {"num_classes": 3, "seed": 0}, {"width": 4}, "", "")()
    (3, 4)
    """
    try:
        parameters = _parameters(function)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: {path} has no signature that Python can read; wrap it in a def") from error
    kind = inspect.Parameter
    if takes_batch:
        first = next(iter(parameters.values()), None)
        if first is None or first.kind in (kind.KEYWORD_ONLY, kind.VAR_KEYWORD):
            raise InputError(f"{where}: {path} takes no positional argument; its first one must be the batch")
        if first.kind is not kind.VAR_POSITIONAL:
            del parameters[first.name]
    anything = any(parameter.kind is kind.VAR_KEYWORD for parameter in parameters.values())
    named = {
        n: parameter
        for n, parameter in parameters.items()
        if parameter.kind not in (kind.VAR_KEYWORD, kind.VAR_POSITIONAL)
    }
    for name in options:
        if name not in named and not anything:
            raise InputError(f"{where}.options: {path} takes no {name!r}; {did_you_mean(name, named)}")
    values = {**{name: value for name, value in offered.items() if name in named}, **options}
    for name, parameter in named.items():
        if parameter.default is kind.empty and name not in values:
            or_option = "" if takes_batch or where == "study.ood" else f", or put it in {where}.options"
            remedy = f"rename it or give it a default{or_option}"
            raise InputError(f"{where}: {path} needs {name!r}, and avuc offers {', '.join(offered)}; {remedy}")
    alone = [values.pop(n) for n, parameter in named.items() if parameter.kind is kind.POSITIONAL_ONLY and n in values]
    return lambda *batch: function(*batch, *alone, **values)


def takes(function: Callable[..., Any], name: str) -> bool:
    """Return whether a function has an argument of this name.

    >>> takes(lambda images, severity: images, "severity"), takes(lambda images, level=1: images, "severity")
    (True, False)
    """
    try:
        return name in _parameters(function)
    except (TypeError, ValueError):
        return False


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function by name; those of `forward` for a network, which passes all of them on."""
    found = dict(inspect.signature(function).parameters)
    forward = getattr(function, "forward", None)
    passed_on = all(parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) for parameter in found.values())
    if passed_on and callable(forward) and not inspect.isclass(function):
        return dict(inspect.signature(forward).parameters)
    return found


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global random numbers of torch, NumPy and Python for the user's code, and restore them afterwards.

    >>> with seeded(3):
    ...     first = random.random()
    >>> with seeded(3):
    ...     random.random() == first
    True
    """
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    import torch  # here, because reports work without torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # of the CPU only
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)


def described(error: BaseException) -> str:
    """Return an error of the user's code on one line, with the file and the line where it happened."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {' '.join(lines[0].split())[:200]}" if lines else type(error).__name__
    if isinstance(error, SyntaxError):
        return f"{text} ({Path(error.filename or '?').name}, line {error.lineno})" if "line" not in text else text
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename and not frame.filename.startswith((_HERE, "<frozen", sys.prefix))
    ]
    return f"{text} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else text
