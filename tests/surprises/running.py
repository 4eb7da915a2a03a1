"""Run a case and say in one word how it ended."""

from __future__ import annotations

import io
import json
import math
import re
import shlex
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from avuc.cli import main
from avuc.core.errors import InputError

from .table import CalibrateCase, Case, PythonCase, Truth

GOOD = ("right figures", "refused")


@dataclass(frozen=True)
class Ended:
    """The exit code, what was written to both streams, and the document; `crash` is a traceback."""

    code: int
    out: str
    err: str
    document: dict[str, Any] | None
    crash: str = ""


def run(words: Sequence[str], document: Path) -> Ended:
    """The command in this process. Python's own warnings count as lines on stderr, as they would be outside tests."""
    out, err, code, crash = io.StringIO(), io.StringIO(), -1, ""
    document.unlink(missing_ok=True)
    with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        try:
            code = main([*words, "--json", str(document)])
        except SystemExit as stop:  # argparse
            code = stop.code if isinstance(stop.code, int) else 1
        except Exception:
            crash = traceback.format_exc(limit=-2)
    said = err.getvalue() + "".join(f"{one.category.__name__}: {one.message}\n" for one in caught)
    return Ended(code, out.getvalue(), said, _read(document), crash)


def run_outside(fresh_python: Any, words: Sequence[str], document: Path) -> Ended:
    """The command as a process of its own."""
    code = "import runpy; runpy.run_module('avuc', run_name='__main__')"
    done = fresh_python(code, *words, "--json", document)
    crash = done.stderr if "Traceback" in done.stderr else ""
    return Ended(done.returncode, done.stdout, done.stderr, _read(document), crash)


@cache
def known_flags() -> frozenset[str]:
    """Every option of `avuc evaluate` and `avuc calibrate`, by their help."""
    found: set[str] = set()
    for command in ("evaluate", "calibrate"):
        out = io.StringIO()
        with redirect_stdout(out), suppress(SystemExit):
            main([command, "--help"])
        found |= set(re.findall(r"--[a-z][\w-]*", out.getvalue()))
    return frozenset(found)


def _read(document: Path) -> dict[str, Any] | None:
    return json.loads(document.read_text(encoding="utf-8")) if document.exists() else None


def judge(case: Case, folder: Path, command: Any = run) -> tuple[str, str]:
    """How the case ended, and the details: one of GOOD, or what is wrong."""
    file = case.make(folder)
    words = ["evaluate", str(file), "--replicates", "0", *(word.format(folder=folder) for word in case.words)]
    ended = command(words, folder / "figures.json")
    if ended.crash:
        return "traceback", ended.crash
    if ended.code == 0:
        return _answered(case, ended)
    state, detail = refusal(ended, [path.name for path in folder.iterdir()], case.remedy)
    if state != "refused":
        return state, detail
    for flags in [*remedies(case, ended.err), *examples(ended.err)]:
        again = command([*words, *(word.format(folder=folder) for word in flags)], folder / "figures.json")
        if again.crash:
            return "traceback", f"{ended.err.strip()}\n  {' '.join(flags)}: {again.crash}"
        if again.code != 0:
            return "the remedy fails", f"{ended.err.strip()}\n  {' '.join(flags)}: {again.err}"
        state, detail = _answered(replace(case, says=None), again)
        if state != "right figures":
            return "the remedy gives wrong figures", f"{ended.err.strip()}\n  {' '.join(flags)}: {detail}"
    return "refused", ended.err


def remedies(case: Case, line: str) -> list[tuple[str, ...]]:
    """The flags of the case that the line names; of --kind, its value too."""
    named = [(" ".join(flags[:2]) if flags[0] == "--kind" else flags[0], flags) for flags in case.follow]
    return [flags for words, flags in named if re.search(rf"{re.escape(words)}(?![\w-])", line)]


def examples(line: str) -> list[list[str]]:
    """The columns that the line gives as an example to copy, unless it leaves a name to fill in."""
    found = re.search(r"for example:? (--columns .*)", line)
    words = shlex.split(found.group(1)) if found else []
    return [words] if words and not any(word.isupper() for word in words) else []


def refusal(ended: Ended, files: Sequence[str], remedy: str | None) -> tuple[str, str]:
    """Whether this is one line with exit code 2 that names a file and the remedy."""
    # pytest names the folder after the case: its words are not the message's
    line = re.sub(r"/\S*/", "", ended.err.strip())
    if ended.code != 2:
        return "exit code", f"{ended.code}: {line}"
    if ended.err.count("\n") != 1 or not line.startswith("avuc: "):
        return "not one line", ended.err
    if ended.document is not None:
        return "figures beside a refusal", line
    if remedy is None:
        return "refused where an answer is due", line
    unknown = set(re.findall(r"(?<!\w)--[a-z][\w-]*", line)) - known_flags()
    if unknown:
        return "the message names a flag that does not exist", f"{line}\n  {unknown}"
    if not any(name in line for name in files):
        return "the message names no file", line
    if not re.search(remedy, line):
        return "the message lacks the remedy", f"{line}\n  expected: {remedy}"
    return "refused", line


def _answered(case: Case, ended: Ended) -> tuple[str, str]:
    if ended.document is None:
        return "no document", ended.out
    if case.truth is None:
        return "wrong figures", f"answered {_shown(ended.document['metrics'])}, but a refusal is due"
    found = differences(case.truth, ended.document, case.only, case.within)
    for name, value in case.also.items():
        got: Any = ended.document
        for key in name.split("."):
            got = got[key]
        if not (math.isclose(got, value, abs_tol=1e-4)):
            found.append(f"{name} {got} instead of {value:.5g}")
    if found:
        return "wrong figures", "; ".join(found)
    if case.says and not re.search(case.says, re.sub(r"\s+", " ", ended.out)):
        return "the output does not say so", f"expected: {case.says}"
    return "right figures", ended.out


def differences(truth: Truth, document: Mapping[str, Any], only: Sequence[str], within: float) -> list[str]:
    """Every figure of the document that is not the truth's."""
    found = []
    for name, value in (("n", len(truth.labels)), ("num_classes", truth.probs.shape[1]), ("samples", truth.samples)):
        if document[name] != value:
            found.append(f"{name} {document[name]} instead of {value}")
    for name in only:
        value, right = document["metrics"][name], truth.figures[name]
        if value is None or not math.isclose(value, right, rel_tol=within, abs_tol=within):
            found.append(f"{name} {value if value is None else f'{value:.5g}'} instead of {right:.5g}")
    return found


def _shown(metrics: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {metrics[name]:.4g}" for name in ("accuracy", "nll", "ece"))


def judge_calibration(case: CalibrateCase, folder: Path, command: Any = run) -> tuple[str, str]:
    """The same for `avuc calibrate`."""
    words = case.make(folder)
    inputs = [path.name for path in folder.iterdir()]
    ended = command(
        ["calibrate", *words, "--out", str(folder / "cal.json"), "--replicates", "0"], folder / "figures.json"
    )
    if ended.crash:
        return "traceback", ended.crash
    if ended.code == 0:
        found = case.check(folder, ended.document)
        return ("wrong figures", "; ".join(found)) if found else ("right figures", ended.out)
    left = [path.name for path in folder.iterdir() if path.name not in inputs]
    if left:
        return "files beside a refusal", f"{left}: {ended.err}"
    return refusal(ended, inputs, case.remedy)


def judge_call(case: PythonCase) -> tuple[str, str]:
    """The same for a call of a function: InputError is the refusal."""
    try:
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            found = case.call()
    except InputError as error:
        if case.refused is None:
            return "refused where an answer is due", str(error)
        if "\n" in str(error):
            return "not one line", str(error)
        return (
            ("refused", str(error))
            if re.search(case.refused, str(error))
            else ("the message lacks the remedy", str(error))
        )
    except Exception as error:
        return "traceback", f"{type(error).__name__}: {error}"
    if case.right is None:
        return "wrong figures", f"answered {found}, but a refusal is due"
    pairs = (
        {"": (found, case.right)}
        if not isinstance(case.right, dict)
        else {name: (found[name], value) for name, value in case.right.items() if name in found}
    )
    wrong = [
        f"{name} {got:.5g} instead of {value:.5g}"
        for name, (got, value) in pairs.items()
        if not math.isclose(got, value, rel_tol=case.within, abs_tol=case.within)
    ]
    return ("wrong figures", "; ".join(wrong)) if wrong else ("right figures", "")
