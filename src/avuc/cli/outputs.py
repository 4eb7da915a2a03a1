"""Output of a command: checks of the output files, writing all of them or none, JSON and texts on standard output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from avuc.cli.command import Namespace, Parser
from avuc.cli.console import Console
from avuc.core.atomic import atomic_path
from avuc.core.errors import InputError, require
from avuc.core.files import check_regular, same_file

# stands for standard input as FILE, and for standard output after --json
STANDARD = "-"


def add_output_options(parser: Parser) -> None:
    """Add --json, --report and --quiet."""
    group = parser.add_argument_group("output files")
    group.add_argument(
        "--json",
        metavar="OUT.json",
        help="write the metrics as JSON; -: to standard output, and everything else to standard error",
    )
    group.add_argument("--report", metavar="OUT.html", help="write one HTML page with charts")
    add_quiet_option(parser)


def add_quiet_option(parser: Parser) -> None:
    """Add --quiet."""
    parser.add_argument("--quiet", action="store_true", help="print only errors and warnings")


def console_for(args: Namespace) -> Console:
    """Return where a command prints: nowhere with --quiet, standard error if standard output gets the JSON."""
    to_stdout = getattr(args, "json", None) == STANDARD
    return Console(sys.stderr if to_stdout else None, quiet=args.quiet, aliases=getattr(args, "aliases", {}))


def file_title(args: Namespace) -> str:
    """Return the name of FILE for the title of a page."""
    aliases: dict[str, str] = getattr(args, "aliases", {})
    return aliases.get(args.file, Path(args.file).name)


def check_outputs(outputs: Mapping[str, str | None], inputs: Sequence[str | None]) -> None:
    """Raise before any work, and before torch is imported, if an input is missing or is not a regular file.

    It also raises if the folder of an output does not exist, or an output is an input or is named twice.
    """
    seen: dict[str, str] = {}
    read = [name for name in inputs if name and name != STANDARD]
    for file in read:
        check_regular(file)
    if any(name.lower().endswith(".npy") for name in read):
        from avuc.evaluation.files.find import also_read

        read += [str(label_file) for name in read for label_file in also_read(name)]
    for option, name in outputs.items():
        if name is None or (name == STANDARD and option == "--json"):
            continue
        path = Path(name)
        if not name or path.is_dir():
            raise InputError(f"{name}: {option} is a folder; give a file name")
        if path.exists() and not path.is_file():
            raise InputError(f"{name}: {option} is not a regular file; give a file name")
        if not path.parent.is_dir():
            raise InputError(f"{name}: the folder of {option} does not exist; create {path.parent} first")
        if path.is_symlink() and not path.exists() and os.path.realpath(path) == os.path.abspath(path):
            raise InputError(f"{name}: {option} is a loop of symbolic links; choose another name")
        if any(same_file(name, other) for other in read):
            raise InputError(f"{name}: {option} would overwrite an input file; choose another name")
        for other, first in seen.items():
            if same_file(name, other):
                raise InputError(f"{name}: {option} and {first} are the same file; choose another name")
        seen[name] = option
    if outputs.get("--report"):
        require("matplotlib", "report", "--report")


def write_all(jobs: Mapping[str | None, Callable[[Path], object]]) -> None:
    """Write all files or none: every file is complete under a temporary name before the first is renamed."""
    with ExitStack() as stack:
        for name, write in jobs.items():
            if name is None:
                continue
            try:
                # follow a link to its target, so that the link stays
                write(stack.enter_context(atomic_path(os.path.realpath(name))))
            except OSError as error:
                raise InputError(
                    f"{name}: cannot be written ({error.strerror or error}); free some space or choose another folder"
                ) from error


def text_job(text: str) -> Callable[[Path], object]:
    """Return a job for `write_all` that writes a text."""
    # a file name may contain bytes that are not text in this locale
    return lambda path: path.write_text(text, encoding="utf-8", errors="backslashreplace")


def json_text(document: dict[str, Any]) -> str:
    """Return a document as JSON text."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_results(
    document: Mapping[str, Any], json_file: str | None, jobs: Mapping[str | None, Callable[[Path], object]]
) -> None:
    """Write all files or none, then the JSON document to its file or to standard output."""
    text = json_text(dict(document))
    if json_file != STANDARD:
        write_all({**jobs, json_file: text_job(text)})
        return
    write_all(jobs)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
