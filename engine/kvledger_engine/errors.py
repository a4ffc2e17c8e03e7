"""What can go wrong in the engine, as types.

EngineError                     exit code 1
├── BadConfig                   a configuration that makes no engine (exit code 2)
│   └── BadQuotas               quotas that contradict each other or the engine, or a tenants file that says none
├── NotEnoughMemory             tensors that the device has no memory for at the start (exit code 2)
├── NonFiniteLogits             a step whose logits are no numbers; its requests end, the next step may be fine
├── ComputeLost                 a device or model that computes nothing any more
└── NotEnoughBlocks             an allocation that cannot be served now; nothing was taken
    └── ArenaFull               blocks there may be, but no chunk in which a table could name them

Errors of one module stand in it, all of them `EngineError`s: `ChannelError` in channel, `EngineGone` and
`EngineStartFailed` in bridge, `CannotListen` in command; `BadTokenizer`, `BadTemplate` and
`BadCheckpoint` where those are read. What a client sent and cannot be answered is none of them: `BadBody` in arrival
and `BadMessages` in template become answers of status 400.
"""

from __future__ import annotations

from collections.abc import Sequence


class EngineError(Exception):
    """Base of every error this package raises; `exit_code` is what a command should exit with."""

    exit_code = 1


class BadConfig(EngineError):
    """A configuration that makes no engine; the message names the value and the remedy."""

    exit_code = 2


class BadQuotas(BadConfig):
    """Quotas of tenants and classes that cannot all be kept; the message states the numbers."""


class NonFiniteLogits(EngineError):
    """Logits of a step are NaN or infinite: nothing can be drawn from them. Later steps may be fine."""

    def __init__(self, slots: Sequence[int]) -> None:
        super().__init__(
            f"logits of request slots {list(slots)} are not finite: check the weights, or use a wider --dtype"
        )
        self.slots = slots


class ComputeLost(EngineError):
    """The compute failed in a way after which no step can succeed. The remedy is to start the engine again."""


class NotEnoughMemory(EngineError):
    """Tensors that do not fit on the device when the engine starts; the message says what, how much and the remedy."""

    exit_code = 2

    def __init__(self, what: str, wanted_bytes: int, remedy: str) -> None:
        super().__init__(f"no memory for {what}, {wanted_bytes:,} bytes: {remedy}")
        self.wanted_bytes = wanted_bytes


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
