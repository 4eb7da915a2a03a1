"""`avuc completion`: a script that lets the shell complete commands, options and their values.

The script is generated from the parser itself, so it has every option.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from avuc.cli.command import Command, Namespace, Parser

TEXT = """\
Print a script that completes the commands and options of avuc, and their values, in your shell."""
EXAMPLES = """\
examples:
  avuc completion bash > ~/.local/share/bash-completion/completions/avuc
  avuc completion zsh > ~/.zfunc/_avuc        # with ~/.zfunc in fpath, before compinit
  avuc completion fish > ~/.config/fish/completions/avuc.fish"""
BASH = """\
# completion of avuc for bash; made by: avuc completion bash
_avuc() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} command=${{COMP_WORDS[1]}}
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{commands}" -- "$current"))
        return
    fi
    case "$command $previous" in
{values}
    esac
    case "$command" in
{options}
    esac
}}
complete -o default -F _avuc avuc
"""


@dataclass(frozen=True)
class Option:
    """One argument of a command: its names (none: positional), help, values, and whether it takes a value."""

    names: tuple[str, ...]
    text: str
    choices: tuple[str, ...]
    takes_value: bool


def arguments(parser: Parser) -> None:
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="the shell")


def run(args: Namespace) -> int:
    sys.stdout.write(SCRIPTS[args.shell](commands_of(args.program)))
    return 0


def commands_of(program: Parser) -> dict[str, tuple[str, list[Option]]]:
    """Return for each command its summary and its options."""
    for action in program._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts = {choice.dest: choice.help or "" for choice in action._choices_actions}
            return {name: (texts.get(name, ""), options_of(parser)) for name, parser in action.choices.items()}
    return {}


def options_of(parser: Parser) -> list[Option]:
    """Return the options of one command."""
    options = []
    for action in parser._actions:
        nested = isinstance(action, argparse._SubParsersAction)
        choices = tuple(str(choice) for choice in action.choices or ())
        text = "" if action.help is None else " ".join((action.help % {"default": action.default}).split())
        options.append(Option(tuple(action.option_strings), text, choices, action.nargs != 0))
        if nested:
            for inner in action.choices.values():  # type: ignore[union-attr]
                options += [option for option in options_of(inner) if option.names]
    return options


def bash_script(commands: dict[str, tuple[str, list[Option]]]) -> str:
    """Return the completion script for bash."""
    values, cases = [], []
    for name, (_, options) in commands.items():
        for option in options:
            patterns = "|".join(f'"{name} {flag}"' for flag in option.names)
            if option.names and option.choices:
                values.append(_bash_case(patterns, option.choices))
            elif option.names and option.takes_value:
                values.append(f"        {patterns}) return ;;")  # a file name
        flags = [flag for option in options for flag in option.names]
        plain = [choice for option in options if not option.names for choice in option.choices]
        # arguments that do not start with a hyphen are file names, unless the command has a list of choices
        pattern = _bash_case(name, [*flags, *plain])
        cases.append(pattern if plain else pattern.replace("COMPREPLY", '[[ "$current" == -* ]] && COMPREPLY', 1))
    return BASH.format(
        commands=" ".join([*commands, "--help", "--version"]), values=_lines(values), options=_lines(cases)
    )


def _bash_case(pattern: str, words: Iterable[str]) -> str:
    return f'        {pattern}) COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$current")); return ;;'


def zsh_script(commands: dict[str, tuple[str, list[Option]]]) -> str:
    """Return the completion script for zsh."""
    lines = ["#compdef avuc", "# made by: avuc completion zsh", "_avuc() {", "    local -a commands", "    commands=("]
    lines += [f"        {_quoted(f'{name}:{text}')}" for name, (text, _) in commands.items()]
    lines += [
        "    )",
        "    if (( CURRENT == 2 )); then _describe command commands; return; fi",
        "    case $words[2] in",
    ]
    for name, (_, options) in commands.items():
        specs = []
        for option in options:
            value = f":value:({' '.join(option.choices)})" if option.choices else ":value:_files"
            text = option.text.translate({ord(c): "\\" + c for c in "[]:"})
            specs += [f"{flag}[{text}]{value if option.takes_value else ''}" for flag in option.names]
            if not option.names and option.choices:
                specs.append(f"*:value:({' '.join(option.choices)})")
        if not any(spec.startswith("*") for spec in specs):
            specs.append("*:file:_files")
        # the command itself is not an argument of the command
        lines.append(f"        {name}) shift words; (( CURRENT-- )); _arguments {' '.join(map(_quoted, specs))} ;;")
    return _lines(
        [*lines, "    esac", "}", 'if [ "$funcstack[1]" = _avuc ]; then _avuc; else compdef _avuc avuc; fi', ""]
    )


def fish_script(commands: dict[str, tuple[str, list[Option]]]) -> str:
    """Return the completion script for fish."""
    lines = ["# completion of avuc for fish; made by: avuc completion fish"]
    for name, (text, options) in commands.items():
        lines.append(f"complete -c avuc -f -n __fish_use_subcommand -a {name} -d {_fish(text)}")
        seen = f"complete -c avuc -n '__fish_seen_subcommand_from {name}'"
        for option in options:
            values = (
                f" -x -a {_fish(' '.join(option.choices))}" if option.choices else " -r" if option.takes_value else ""
            )
            names = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.names)
            if option.names:
                lines.append(f"{seen} {names}{values} -d {_fish(option.text)}")
            elif option.choices:
                lines.append(f"{seen} -f -a {_fish(' '.join(option.choices))}")
    return _lines([*lines, ""])


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """Return a text in single quotes for bash and zsh."""
    return "'" + text.replace("'", "'\\''") + "'"


def _fish(text: str) -> str:
    """Return a text in single quotes for fish."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SCRIPTS: dict[str, Callable[[dict[str, tuple[str, list[Option]]]], str]] = {
    "bash": bash_script,
    "zsh": zsh_script,
    "fish": fish_script,
}
COMMAND = Command(
    summary="print a script for completion in bash, zsh or fish",
    text=TEXT,
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
)
