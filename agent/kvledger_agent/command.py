"""The contract of a subcommand, and the helpers every subcommand shares. Imports the standard library only."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, Protocol


class Command(Protocol):
    """A subcommand of `kvledger`; an entry point of the group `kvledger.commands` loads to one."""

    @property
    def name(self) -> str:
        """The word after `kvledger`; equal to the entry point's name."""

    @property
    def help(self) -> str:
        """One line for `kvledger --help`."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add this subcommand's arguments to its own parser."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it. Returns 0 when all is fine, 1 for a finding or failure; raises errors that carry an `exit_code`."""


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--json` (`args.json`): what is printed for people is printed as one JSON document instead."""
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout instead of text")


def path_argument(text: str) -> Path:
    """The type of an argument that is a path. An empty one, as from a variable that is not set, is refused: it would
    mean the working directory.
    """
    if not text:
        raise argparse.ArgumentTypeError("an empty path: is a variable not set?")
    return Path(text)


def print_json(obj: Any) -> None:
    """Print a JSON document on stdout and flush it. Dataclasses become objects; NaN and infinity are refused.

    Raises:
        ValueError: a number JSON cannot express (unknown is None, never NaN).
        TypeError: an object that is neither a dataclass nor plain data.
    """
    json.dump(obj, sys.stdout, indent=2, allow_nan=False, default=_plain)
    sys.stdout.write("\n")
    sys.stdout.flush()


def _plain(obj: Any) -> Any:
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        return {field.name: getattr(obj, field.name) for field in dataclasses.fields(obj)}
    if isinstance(obj, (set, frozenset)):
        return sorted(obj)
    raise TypeError(f"{type(obj).__name__} is not plain data; turn it into a dict before printing it as JSON")
