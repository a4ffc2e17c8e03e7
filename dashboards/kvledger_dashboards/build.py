"""Writes the boards as Grafana's classic JSON into the package, or says which committed ones are stale."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from kvledger_dashboards.boards import fleet, itself, oncall, pool, requests
from kvledger_dashboards.links import Places

GENERATED = Path(__file__).parent / "generated"
BOARDS = MappingProxyType({each.UID: each.board for each in (oncall, pool, requests, fleet, itself)})


def document(board: builders.Dashboard) -> dict[str, Any]:
    """The board as Grafana reads it from a file.

    The SDK puts every link and annotation into the controls menu, where nobody sees them; without that key they are
    shown above the board.
    """
    made: dict[str, Any] = json.loads(JSONEncoder().encode(board.build()))
    for hidden in (*made["links"], *made["annotations"]["list"]):
        hidden.pop("placement", None)
    return made


def rendered(places: Places | None = None) -> dict[str, str]:
    """File name and text of every board, always the same for the same source and addresses."""
    chosen = places or Places()
    return {
        f"{uid}.json": json.dumps(document(board(chosen)), indent=2, sort_keys=True) + "\n"
        for uid, board in BOARDS.items()
    }


def stale(directory: Path = GENERATED, places: Places | None = None) -> list[str]:
    """Files that are missing, differ from what would be written, or belong to no board."""
    wanted = rendered(places)
    found = {path.name: path.read_text() for path in directory.glob("*.json")}
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def write(directory: Path = GENERATED, places: Places | None = None) -> list[Path]:
    """Write every board and remove JSON that belongs to none; the paths written."""
    wanted = rendered(places)
    directory.mkdir(parents=True, exist_ok=True)
    for path in directory.glob("*.json"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (directory / name).write_text(text)
    return [directory / name for name in wanted]


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m kvledger_dashboards.build`; 1 if `--check` finds a stale file."""
    parser = argparse.ArgumentParser(prog="python -m kvledger_dashboards.build", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; name stale files and exit with 1")
    parser.add_argument("--into", type=Path, default=GENERATED, metavar="DIR", help="where the files go")
    parser.add_argument("--explorer", metavar="URL", default=Places().explorer, help="the explorer (%(default)s)")
    parser.add_argument(
        "--runbook-base", metavar="URL", default=Places().runbook, help="where the runbook's pages are (%(default)s)"
    )
    given = parser.parse_args(arguments)
    places = Places(explorer=given.explorer.rstrip("/"), runbook=given.runbook_base)
    if not given.check:
        for path in write(given.into, places):
            print(path)
        return 0
    names = stale(given.into, places)
    for name in names:
        print(f"{name} is stale: run python -m kvledger_dashboards.build and commit it", file=sys.stderr)
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
