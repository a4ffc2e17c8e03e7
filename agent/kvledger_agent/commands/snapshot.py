"""`kvledger snapshot FILE`: who holds what in one ledger or recording; with `--save`, keeps the ledger as it is now."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from kvledger.record import Saved, record
from kvledger_agent.command import add_json_flag, path_argument, print_json
from kvledger_agent.documents import requests_document, snapshot_document
from kvledger_agent.errors import UsageError
from kvledger_agent.observation import Observation
from kvledger_agent.one_ledger import open_ledger
from kvledger_agent.patience import look_until_decided
from kvledger_agent.request_rows import RequestRow, request_rows
from kvledger_agent.screen import console, engine_panel
from kvledger_agent.tables import instant_text, request_table


class SnapshotCommand:
    """Prints one ledger or recording: its numbers, its findings, who holds what. Or saves a ledger."""

    name = "snapshot"
    help = (
        "print one ledger file, live, left behind or saved: who holds what; exit code 1 for a finding; --save keeps it"
    )

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the file, how to print it, and where to save it."""
        add_json_flag(parser)
        parser.add_argument(
            "files",
            type=path_argument,
            nargs="+",
            metavar="FILE",
            help="the ledger: ENGINE.RANK.EPOCH.kvledger, or a recording of one; of several the newest is taken, so "
            "that ENGINE.RANK.*.kvledger names an engine's latest start",
        )
        parser.add_argument(
            "--save",
            type=path_argument,
            metavar="RECORDING",
            help="save the ledger as it is now into this new file, and print only what was saved",
        )
        parser.add_argument("--force", action="store_true", help="let --save replace an earlier recording")
        parser.epilog = (
            "A ledger whose engine is gone is judged at once; a live one that shows something wrong is watched for "
            "some seconds before that is called a finding. A recording, which --save makes without holding up the "
            "engine, is judged at once and shows the ledger as it was then. It takes up to the ledger's size on disk."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Print or save the ledger. Returns 1 for a finding or an open suspicion.

        Raises `UsageError`, `NoLedger`, a `LedgerUnreadable`, or a `LedgerUnwritable` if it cannot be saved.
        """
        if args.force and args.save is None:
            raise UsageError("--force replaces an earlier recording: say which with --save")
        with closing(open_ledger(newest(args.files))) as source:
            if args.save is not None:
                _print_saved(record(source.reader, args.save, force=args.force), as_json=args.json)
                return 0
            (observation,) = look_until_decided(lambda: (source.look(),))
            sample, audit = source.reader.sample(), source.reader.audit()
            if args.json:
                held = requests_document(sample, audit)
                print_json(snapshot_document(observation) | {"holders": held["requests"], "pins": held["pins"]})
            else:
                _show(observation, request_rows(sample, audit))
        return int(observation.has_findings or observation.in_doubt)


def newest(files: Sequence[Path]) -> Path:
    """The one file, or that of the last start of one engine. Raises `UsageError` for files of several engines."""
    starts = {file: file.name.rsplit(".", 2) for file in files}
    if len(files) > 1 and len({(file.parent, *parts[:1]) for file, parts in starts.items()}) > 1:
        raise UsageError(f"{len(files)} files of several engines: name one of them, or use kvledger status")
    return max(files, key=lambda file: file.name)


def _show(observation: Observation, rows: Sequence[RequestRow]) -> None:
    output = console()
    output.print(engine_panel(observation))
    if rows:
        output.print(request_table(rows))


def _print_saved(saved: Saved, *, as_json: bool) -> None:
    if as_json:
        print_json(saved_document(saved))
        return
    at, recording = instant_text(saved.recording.wall_ns), saved.recording
    print(
        f"saved {saved.engine}:{saved.rank} as of {at} ({recording.status}, publication {saved.published_seq:,}) "
        f"to {saved.path}: {saved.bytes:,} bytes, in motion {recording.blocks_in_motion:,} blocks and "
        f"{recording.requests_in_motion:,} requests"
    )


def saved_document(saved: Saved) -> dict[str, Any]:
    """What was saved, as JSON data. `wall_ns` is the instant; what was in motion then is not in the recording."""
    recording = saved.recording
    return {
        "path": str(saved.path),
        "bytes": saved.bytes,
        "engine": saved.engine,
        "rank": saved.rank,
        "epoch": saved.epoch,
        "published_seq": saved.published_seq,
        "status": recording.status,
        "wall_ns": recording.wall_ns,
        "blocks_in_motion": recording.blocks_in_motion,
        "requests_in_motion": recording.requests_in_motion,
    }


COMMAND = SnapshotCommand()
