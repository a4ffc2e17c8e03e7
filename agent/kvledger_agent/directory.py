"""Which ledger files of a directory are current: the newest epoch of every (engine, rank). Knows names and magics."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from kvledger.recording import is_recording
from kvledger.segment import SUFFIX, parse_name


@dataclass(frozen=True, slots=True)
class LedgerFile:
    """One current ledger. `key` is `engine:rank`; device and inode tell a file that was made anew from the old one."""

    key: str
    path: Path
    epoch: int
    file_id: tuple[int, int]


def scan(directory: Path) -> dict[str, LedgerFile]:
    """The newest ledger of every engine, by key. A file with the suffix but no ledger's name stands under its own name.

    A recording is no engine's ledger, whatever it is called, and is left out.

    Raises `FileNotFoundError`, `NotADirectoryError` or `PermissionError` for the directory itself.
    """
    newest: dict[str, LedgerFile] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            if not entry.name.endswith(SUFFIX) or entry.name.startswith("."):
                continue
            found = None if is_recording(Path(entry.path)) else _ledger_file(Path(entry.path))
            if found is not None and (found.key not in newest or newest[found.key].epoch < found.epoch):
                newest[found.key] = found
    return dict(sorted(newest.items()))


def _ledger_file(path: Path) -> LedgerFile | None:
    try:
        status = path.lstat()
    except FileNotFoundError:  # a new engine start has just removed it
        return None
    name = parse_name(path)
    key, epoch = (f"{name[0]}:{name[1]}", name[2]) if name else (path.name, 0)
    return LedgerFile(key, path, epoch, (status.st_dev, status.st_ino))
