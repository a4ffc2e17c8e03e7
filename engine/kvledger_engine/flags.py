"""The arguments of `kvledger engine` as a table: `python -m kvledger_engine.flags` prints it for docs/engine.md. Pure.

What each argument is, `arguments` says; a test holds the page against it.
"""

from __future__ import annotations

import argparse
import re

from kvledger_engine.arguments import add_arguments

_DEFAULT = re.compile(r" \(default: (?P<default>.*)\)$")


def table() -> str:
    """Every argument with its values, its default and what it does, in Markdown."""
    parser = argparse.ArgumentParser(prog="kvledger engine", add_help=False)
    add_arguments(parser)
    rows = [_row(parser, action) for action in parser._actions]
    return "\n".join(("| argument | default | what it does |", "|---|---|---|", *rows))


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    text = (action.help or "") % {"default": action.default, "prog": parser.prog}
    found = _DEFAULT.search(text)
    default = found["default"] if found else ("off" if action.nargs == 0 else "none")
    values = "" if action.nargs == 0 else f" {_value(action)}"
    return f"| `{action.option_strings[0]}{values}` | {default} | {_DEFAULT.sub('', text)} |"


def _value(action: argparse.Action) -> str:
    if action.choices is not None:
        return "\\|".join(map(str, action.choices))
    return str(action.metavar or action.dest.upper())


if __name__ == "__main__":
    print(table())
