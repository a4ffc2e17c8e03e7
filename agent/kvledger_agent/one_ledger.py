"""One ledger file named by the user, live or left behind. Turns what is no file into words."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from kvledger_agent.config import default_directory
from kvledger_agent.errors import AgentError
from kvledger_agent.ledger_source import LedgerSource


class NoLedger(AgentError):
    """There is nothing to show: a file or directory is missing, or a directory holds no ledger."""


def open_ledger(path: Path, *, price_per_hour: float | None = None) -> LedgerSource:
    """Open a ledger file. Raises `NoLedger` when there is no such file, or a `LedgerUnreadable` subclass."""
    try:
        return LedgerSource.open(path, price_per_hour=price_per_hour)
    except OSError as error:
        directory = default_directory()
        with suppress(OSError):
            directory = path.parent if path.parent.is_dir() else directory
        why = "" if isinstance(error, FileNotFoundError | NotADirectoryError) else f" ({error.strerror})"
        shown = f"`kvledger status --directory {directory}` shows those there are"
        raise NoLedger(f"no ledger {path}{why}: {shown}") from error
