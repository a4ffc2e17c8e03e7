"""What can go wrong in the agent and its commands, as types.

AgentError                       exit code 1
├── UsageError                   exit code 2: arguments that make no sense together, or a value out of range
├── MissingExtra                 a subcommand needs a package of an extra that is not installed
└── LoadError                    `kvledger load` cannot start
    ├── TraceError               a trace file, or one row of it, that cannot be read
    └── EndpointError            no endpoint answers, or it does not say which model it serves

Those of one part stand beside it: of the sampler (`agent`), of a client of the API (`client.ClientError`), of a scraped
endpoint (`scrape.errors.ScrapeFailed`), of a drill (`drill.errors`), of a child process (`up.child.ChildFailed`), and
of a file or directory without a ledger (`one_ledger.NoLedger`).

Errors of the ledger itself are `kvledger.errors.LedgerError`. Every class that carries an integer `exit_code` is meant
for the user: the command prints it as one line, without a traceback, and exits with that code.
"""

from __future__ import annotations


class AgentError(Exception):
    """Base of the agent's errors; `exit_code` is what a command exits with."""

    exit_code = 1


class UsageError(AgentError):
    """The arguments are well formed but cannot be acted on; the message names the value and the remedy."""

    exit_code = 2


class MissingExtra(AgentError):
    """A subcommand's import failed because a package of an optional extra is absent."""


class LoadError(AgentError):
    """Base of what stops `kvledger load` before its first request; a peer's faults under load are never raised."""


class TraceError(LoadError):
    """A trace cannot be read; the message gives file, line and remedy."""


class EndpointError(LoadError):
    """The endpoint cannot be asked for its model."""
