"""The `kvledger` command: finds its subcommands by entry point and shows errors once, in one line.

Only the chosen subcommand is imported, so that `kvledger status` does not pay for what another one needs.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from importlib import metadata
from typing import NoReturn

from kvledger_agent.command import Command
from kvledger_agent.extras import missing_extra
from kvledger_agent.process import version

GROUP = "kvledger.commands"
INTERRUPTED = 130
MISUSED = 2
UNITS = ("_seconds", "_per_second", "_percent", "_tokens")
"""What the name of a setting may end with, and its flag does not."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with an argument in one line; the flags there are, `--help` shows."""

    def error(self, message: str) -> NoReturn:
        self.exit(MISUSED, f"{self.prog}: {message}; see `{self.prog} --help`\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns 0 when all is fine, 1 for a finding or failure, 2 for a usage error."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if threading.current_thread() is threading.main_thread():
        # A shell without job control starts what is behind `&` with SIGINT ignored; Ctrl-C is to end it all the same.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    args = argparse.Namespace()
    try:
        args = _parsed(arguments)
        command: Command = args.command
        return command.run(args)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _close_stdout()
        return 1
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if not isinstance(code, int):
            raise
        said = _one_line(error)
        print(f"kvledger: {_in_flags(said, args) if code == MISUSED else said}", file=sys.stderr)
        return code


def _parsed(arguments: list[str]) -> argparse.Namespace:
    """What was asked for. An argument that a subcommand does not know is shown with that subcommand's usage."""
    args, unknown = build_parser(arguments[0] if arguments else None).parse_known_args(arguments)
    if unknown:
        flags = list(args.parser._option_string_actions)
        near = [flag for word in unknown for flag in difflib.get_close_matches(word.partition("=")[0], flags, n=1)]
        meant = f"; did you mean {' '.join(near)}?" if near else ""
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
    return args


def _in_flags(message: str, args: argparse.Namespace) -> str:
    """A message about settings, which name themselves as in the code, with the flags that were given instead."""
    given = {
        action.dest: action.option_strings[-1]
        for action in getattr(args, "parser", _Parser())._actions
        if action.option_strings and action.nargs != 0 and getattr(args, action.dest, None) is not None
    }

    def flag(found: re.Match[str]) -> str:
        names = (found[0], *(found[0].removesuffix(unit) for unit in UNITS))
        return next((given[name] for name in names if name in given), found[0])

    return re.sub(r"(?<![^\s(])\w+(?==)", flag, message)


def build_parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """The parser with all subcommands, or with the chosen one alone if an entry point has that name.

    Raises:
        MissingExtra: the chosen subcommand needs a package that is not installed.
    """
    parser = _Parser(prog="kvledger", description="Sees every block of a paged KV cache.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"kvledger {version()}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    points = sorted(metadata.entry_points(group=GROUP), key=lambda point: point.name)
    selected = [point for point in points if point.name == chosen]
    for point in selected or points:
        _add(subparsers, point, must_load=bool(selected))
    return parser


def _add(subparsers: argparse._SubParsersAction[_Parser], point: metadata.EntryPoint, *, must_load: bool) -> None:
    try:
        command: Command = point.load()
    except ModuleNotFoundError as error:
        missing = missing_extra(point.name, error)
        if missing is None:
            raise
        if must_load:
            raise missing from error
        subparsers.add_parser(point.name, help=f"(not installed: needs {error.name})")
        return
    parser = subparsers.add_parser(point.name, help=command.help, description=command.help, allow_abbrev=False)
    command.configure(parser)
    parser.set_defaults(command=command, parser=parser)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _close_stdout() -> None:
    # The reader went away (`kvledger status | head`); without this the interpreter complains again at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
