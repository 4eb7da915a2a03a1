"""`avuc demo`: the whole story on real images, in a minute."""

from __future__ import annotations

from avuc.cli.command import Command, Namespace, Parser

__all__ = ["COMMAND"]


def arguments(parser: Parser) -> None:
    parser.add_argument("--out", default="avuc-demo", metavar="DIR", help="folder for the files (default: avuc-demo)")


def run(args: Namespace) -> int:
    return 0


COMMAND = Command(
    summary="the whole story on real images, in a minute",
    text="Train",
    examples="example:\n  avuc demo --out demo",
    arguments=arguments,
    run=run,
)
