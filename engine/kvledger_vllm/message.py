"""What the tap says of one publication: a tuple of plain values, as `marshal` packs them.

No token and no text of a request is ever in one. Ledger numbers of blocks, CLOCK_MONOTONIC nanoseconds, request ids.
"""

from __future__ import annotations

from marshal import loads
from typing import Any, NamedTuple

SCHEDULE, UPDATE, OTHER, CLOSE = range(4)
"""What kind of entry point has ended; `CLOSE`: there will be no other message (rare: `clean`)."""


class Message(NamedTuple):
    """One publication's changes. Blocks are told as rows: number, `reading.code_of` of it, number, code, and so on."""

    kind: int
    began_ns: int
    ended_ns: int
    now_ns: int
    """When all of this was read: the ledger clock of the publication."""
    tapped_ns: int
    """What the tap of the publication before this one took of the engine's time."""
    idle: bool
    running: int
    free: int
    """Blocks in vLLM's free queue, by its own count."""
    evictions: int
    fresh: list[int]
    """Blocks that were taken from the free queue, in vLLM's numbers."""
    codes: list[int]
    """`reading.code_of` each of them."""
    grown: tuple[list[str], list[int], list[Any]] | None
    """Of tables that only grew: request ids, blocks they have now, and the new ones by group in vLLM's numbers."""
    step: int
    """Number of the step that was scheduled or updated, 0 for none."""
    tokens: Any
    """Of a schedule: request id -> tokens, None where it is as in the last one. Of an update: None where each request
    of the step got one token, else request id, tokens computed, tokens generated, of each by its own count."""
    stretch: tuple[int, list[int]] | None
    """First block, and the codes of it and those behind it: for comparison."""
    proof: list[Any] | None
    """Now and then, to be compared: of a few running requests id, tokens computed and generated, last block (-1: not
    told)."""
    rare: dict[str, Any] | None
    """By name, what happens seldom; see `rare.Rare`."""
    update: tuple[int, ...] | None = None
    """The update right before this, if each request of its step got one token and nothing else happened: when it began,
    ended and was read, `tapped_ns`, `running` and `free` then, and the step."""


def quiet_update(said: tuple[int, ...]) -> Message:
    """What `Message.update` says, as a message of its own."""
    began_ns, ended_ns, now_ns, tapped_ns, running, free, step = said
    return Message(
        UPDATE, began_ns, ended_ns, now_ns, tapped_ns, False, running, free, 0, [], [], None, step, None, None,
        None, None,
    )  # fmt: skip


def unpacked(packed: bytes) -> list[Message]:
    """The messages that one packed one is, in order. Raises `TypeError` or `ValueError` on something else."""
    message = Message(*loads(packed))
    return [message] if message.update is None else [quiet_update(message.update), message]
