"""`main`: find the command, run it, and turn a bad input into one line and exit code 2."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from avuc.cli.calibrate import COMMAND as CALIBRATE
from avuc.cli.command import Command
from avuc.cli.demo import COMMAND as DEMO
from avuc.cli.evaluate import COMMAND as EVALUATE
from avuc.cli.report import COMMAND as REPORT
from avuc.cli.shifts import COMMAND as SHIFTS
from avuc.cli.study import COMMAND as STUDY
from avuc.cli.train import COMMAND as TRAIN
from avuc.errors import InputError, MissingExtra

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
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    if not arguments:
        parser.print_help()
        return 0
    args = parser.parse_args(arguments)
    try:
        code = COMMANDS[args.command].run(args)
        sys.stdout.flush()
        return code
    except (InputError, MissingExtra) as error:
        return _complain(str(error), 2)
    except KeyboardInterrupt:
        return _complain("interrupted; nothing was written", 130)
    except BrokenPipeError:
        # the reader has gone (avuc … | head); Python would complain again when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _complain(message: str, code: int) -> int:
    """One line, whatever a file's name contains, in characters the terminal knows."""
    line = "".join(char if char.isprintable() else repr(char)[1:-1] for char in f"avuc: {message}")
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
