"""What can go wrong with a ledger, as types.

LedgerError
├── LedgerUnreadable            a path that cannot be read as a ledger
│   ├── NotALedger              wrong magic, wrong checksum, not a regular file, a symlink
│   ├── OtherVersion            a ledger whose major version (or required section) this reader does not know
│   ├── Truncated               shorter than its header says
│   ├── NotPermitted            mode, owner or group forbids it
│   ├── SameProcess             opened by the process that writes it: the close would drop the writer's lock
│   └── Busy                    the writer moved on during every look, and no earlier sample exists
└── LedgerUnwritable            a ledger or recording that cannot be created
    ├── NoSpace                 the file system cannot hold it
    ├── NotMemory               the directory is on disk, where a page store can stall the engine
    ├── AlreadyWritten          a live writer owns this (engine, rank)
    ├── BadGeometry             limits that make no ledger
    └── BadTarget               a place where no recording may be written
"""

from __future__ import annotations


class LedgerError(Exception):
    """Base of every error this package raises; `exit_code` is what a command should exit with."""

    exit_code = 1


class LedgerUnreadable(LedgerError):
    """The path cannot be read as a ledger."""


class NotALedger(LedgerUnreadable):
    """Wrong magic or checksum, not a regular file, or a symbolic link."""


class OtherVersion(LedgerUnreadable):
    """A ledger of a major version, or without a section, that this reader needs."""


class Truncated(LedgerUnreadable):
    """The file is shorter than its header says."""


class NotPermitted(LedgerUnreadable):
    """The file's mode, owner or group does not let this process read it."""


class SameProcess(LedgerUnreadable):
    """This process writes the file; closing a reader of it would drop the writer's lock."""


class Busy(LedgerUnreadable):
    """The writer moved on during every look, and there is no earlier sample to serve."""


class LedgerUnwritable(LedgerError):
    """A ledger or recording cannot be created."""


class NoSpace(LedgerUnwritable):
    """The file system has no room for the ledger or recording."""


class NotMemory(LedgerUnwritable):
    """The directory is not on tmpfs."""


class AlreadyWritten(LedgerUnwritable):
    """Another live process writes the ledger of this (engine, rank)."""


class BadTarget(LedgerUnwritable):
    """A recording may not be written there: something is in its place, or would be taken for a live ledger."""

    exit_code = 2


class BadGeometry(LedgerUnwritable):
    """Limits that cannot make a ledger: an argument to correct, hence the exit code of a usage error."""

    exit_code = 2
