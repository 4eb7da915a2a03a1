"""`main`: find the command and run it; bad input becomes one line on standard error and exit code 2."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from typing import NoReturn

from avuc.cli.apply import COMMAND as APPLY
from avuc.cli.calibrate import COMMAND as CALIBRATE
from avuc.cli.command import Command
from avuc.cli.completion import COMMAND as COMPLETION
from avuc.cli.conformal import COMMAND as CONFORMAL
from avuc.cli.demo import COMMAND as DEMO
from avuc.cli.evaluate import COMMAND as EVALUATE
from avuc.cli.report import COMMAND as REPORT
from avuc.cli.select import COMMAND as SELECT
from avuc.cli.shifts import COMMAND as SHIFTS
from avuc.cli.standard_input import standard_input
from avuc.cli.study import COMMAND as STUDY
from avuc.cli.train import COMMAND as TRAIN
from avuc.core.errors import InputError, MissingExtra, explained
from avuc.core.progress import without_progress
from avuc.core.text import visible

# a new command is one file and one line here
COMMANDS: dict[str, Command] = {
    "demo": DEMO,
    "evaluate": EVALUATE,
    "calibrate": CALIBRATE,
    "apply": APPLY,
    "conformal": CONFORMAL,
    "select": SELECT,
    "train": TRAIN,
    "study": STUDY,
    "report": REPORT,
    "shifts": SHIFTS,
    "completion": COMPLETION,
}
"""Name of each command -> the command."""
# the user can fix these problems with a file, so the exit code is 2, not 1
USER_ERRORS = {
    errno.ENOENT,
    errno.EACCES,
    errno.EPERM,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.ELOOP,
    errno.ENAMETOOLONG,
}
TEXT = "Train, calibrate and evaluate classifiers that know when they are wrong."
EXAMPLES = """\
examples:
  avuc evaluate test.npz --report test.html
  avuc calibrate validation.npz --method temperature --out cal.json --apply test.npz --to test-calibrated.npz
  avuc apply cal.json other.npz --to other-calibrated.npz
  avuc conformal validation.npz --coverage 0.9 --apply test.npz --to sets.csv
  avuc select validation.npz --risk 0.1 --apply test.npz --to answers.csv
  avuc train recipe.toml --out run
  avuc study demo --out study
  avuc report study
  avuc shifts gallery photo.png --out sheet.png
  avuc demo
  avuc completion bash

'avuc COMMAND --help' explains each command."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Args:
        argv: the arguments without the name of the program (default: those of this process).

    >>> main(["evaluate", "missing.npz"])  # one line on standard error
    2
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller (avuc … >&-): the output files are still wanted
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    code = _exit_code(list(sys.argv[1:] if argv is None else argv))
    launch = sys.modules.get("avuc.training.launch")  # not imported for this question: it needs torch
    if code and launch is not None and launch.group_failed():
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)  # shutting down Python could abort, and torchrun would see another exit code
    return code


def _exit_code(arguments: list[str]) -> int:
    """Run the command; an error becomes one line on standard error and an exit code."""
    try:
        return _run(arguments)
    except (InputError, MissingExtra) as error:
        return _print_error(str(error), 2)
    except KeyboardInterrupt:
        return _print_error(
            "interrupted; run the same command again; a command that writes checkpoints continues from them", 130
        )
    except BrokenPipeError:
        _discard_output()  # the reader is gone (avuc … | head)
        return 141
    except OSError as error:
        _discard_output()
        code = 2 if error.filename is not None and error.errno in USER_ERRORS else 1
        return _print_error(f"{error.filename or 'standard output'}: {error.strerror or error}", code)
    except Exception as error:
        line = explained(error)
        if line is None:
            raise
        return _print_error(line, 2)


def _run(arguments: list[str]) -> int:
    parser = _parser()
    if not arguments:
        parser.print_help()
        code = 0
    else:
        try:
            args, unknown = parser.parse_known_args(arguments)
            if unknown:
                args.own_parser.error(_unrecognized(unknown, args.own_parser))
        finally:  # also after --help and --version: a closed pipe raises here, not at exit
            sys.stdout.flush()
        with standard_input(args), without_progress(getattr(args, "quiet", False)), one_line_warnings():
            code = COMMANDS[args.command].run(args)
    sys.stdout.flush()
    return code


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Print a warning of this package as one line, without the line of code of the command that called it."""
    before = warnings.formatwarning

    def formatted(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        if not issubclass(category, UserWarning) or filename != sys.argv[0]:
            return before(message, category, filename, lineno, line)
        return visible(f"avuc: {message}") + "\n"

    warnings.formatwarning = formatted
    try:
        yield
    finally:
        warnings.formatwarning = before


def _discard_output() -> None:
    """Send the rest of standard output to nowhere, so that Python's flush at exit does not fail again."""
    with suppress(OSError, ValueError):  # a stream without a file needs no flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_error(message: str, code: int) -> int:
    """Print one line, with escapes for control characters and for what the terminal cannot show; return the code."""
    line = visible(f"avuc: {message}")
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    print(line.encode(encoding, "backslashreplace").decode(encoding), file=sys.stderr)
    return code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        sys.exit(_print_error(f"{message}; run '{self.prog} --help' for the options", 2))


def _unrecognized(unknown: list[str], parser: argparse.ArgumentParser) -> str:
    """Return what is wrong with arguments that the parser does not know, with the most similar option."""
    option = next((word for word in unknown if word.startswith("--")), "").partition("=")[0]
    similar = get_close_matches(option, parser._option_string_actions, 1)
    return f"unrecognized arguments: {' '.join(unknown)}" + (f"; did you mean {similar[0]}?" if similar else "")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from avuc import __version__

        print(f"avuc {__version__}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    shape = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog="avuc", description=TEXT, epilog=EXAMPLES, formatter_class=shape, allow_abbrev=False)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=command.summary,
            description=command.text,
            epilog=command.examples,
            formatter_class=shape,
            allow_abbrev=False,
        )
        command.arguments(sub)
        sub.set_defaults(own_parser=sub)  # names the command in the error of an unknown option
    parser.set_defaults(program=parser)  # for `completion`
    return parser
