"""`main`: find the command, run it, and turn a bad input into one line and exit code 2."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from avuc.cli.calibrate import COMMAND as CALIBRATE
from avuc.cli.command import Command
from avuc.cli.console import shown
from avuc.cli.demo import COMMAND as DEMO
from avuc.cli.evaluate import COMMAND as EVALUATE
from avuc.cli.report import COMMAND as REPORT
from avuc.cli.shifts import COMMAND as SHIFTS
from avuc.cli.study import COMMAND as STUDY
from avuc.cli.train import COMMAND as TRAIN
from avuc.core.errors import InputError, MissingExtra, explained

__all__ = ["COMMANDS", "main"]

# a new command is one file and one line here
COMMANDS: dict[str, Command] = {
    "demo": DEMO,
    "evaluate": EVALUATE,
    "calibrate": CALIBRATE,
    "train": TRAIN,
    "study": STUDY,
    "report": REPORT,
    "shifts": SHIFTS,
}
# a file that the user named and can mend, not a fault of the machine
THEIRS = {
    errno.ENOENT,
    errno.EACCES,
    errno.EPERM,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.ELOOP,
    errno.ENAMETOOLONG,
}
TEXT = "Make a classifier know when it is wrong, and prove it."
EXAMPLES = """\
examples:
  avuc evaluate test.npz --report test.html
  avuc calibrate validation.npz --method temperature --out cal.json --apply test.npz --to test-calibrated.npz
  avuc train recipe.toml --out run
  avuc study demo --out study
  avuc report study
  avuc shifts gallery photo.png --out sheet.png
  avuc demo

'avuc COMMAND --help' explains each command."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller (avuc … >&-): nobody listens, the files are still wanted
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except (InputError, MissingExtra) as error:
        return _complain(str(error), 2)
    except KeyboardInterrupt:
        return _complain("interrupted; the same command starts again, or goes on where it keeps checkpoints", 130)
    except BrokenPipeError:
        _silence()  # the reader has gone (avuc … | head)
        return 141
    except OSError as error:
        _silence()
        code = 2 if error.filename is not None and error.errno in THEIRS else 1
        return _complain(f"{error.filename or 'standard output'}: {error.strerror or error}", code)
    except Exception as error:
        line = explained(error)
        if line is None:
            raise
        return _complain(line, 2)


def _run(arguments: list[str]) -> int:
    parser = _parser()
    if not arguments:
        parser.print_help()
        code = 0
    else:
        try:
            args = parser.parse_args(arguments)
        finally:  # after --help and --version, too: a reader that has gone is noticed here, not at exit
            sys.stdout.flush()
        code = COMMANDS[args.command].run(args)
    sys.stdout.flush()
    return code


def _silence() -> None:
    """Python would complain again when it flushes standard output at exit."""
    with suppress(OSError, ValueError):  # a stream without a file has nothing to flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str, code: int) -> int:
    """One line, whatever a file's name contains, in characters the terminal knows."""
    line = shown(f"avuc: {message}")
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    print(line.encode(encoding, "backslashreplace").decode(encoding), file=sys.stderr)
    return code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        sys.exit(_complain(f"{message}; see '{self.prog} --help'", 2))


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
    return parser
