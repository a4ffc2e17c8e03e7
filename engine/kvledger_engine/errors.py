"""What can go wrong in the engine, as types.

EngineError                     exit code 1
├── BadConfig                   a configuration that makes no engine (exit code 2)
└── NotEnoughBlocks             an allocation that cannot be served now; nothing was taken
    └── ArenaFull               blocks there may be, but no chunk in which a table could name them
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of every error this package raises; `exit_code` is what a command should exit with."""

    exit_code = 1


class BadConfig(EngineError):
    """A configuration that makes no engine; the message names the value and the remedy."""

    exit_code = 2


class NotEnoughBlocks(EngineError):
    """An allocation that cannot be served now. Nothing was taken.

    `needed` and `available` (free + cached) are blocks. The remedy is to wait, to preempt, or a larger pool.
    """

    def __init__(self, needed: int, available: int) -> None:
        super().__init__(f"{needed} blocks needed, {available} free or cached: wait, preempt, or raise capacity_blocks")
        self.needed, self.available = needed, available


class ArenaFull(NotEnoughBlocks):
    """The block-table arena has too few free chunks. `needed` and `available` are chunks here. Nothing was taken."""

    def __init__(self, needed: int, available: int) -> None:
        EngineError.__init__(self, f"{needed} block-table chunks needed, {available} free: raise max_logical_blocks")
        self.needed, self.available = needed, available
