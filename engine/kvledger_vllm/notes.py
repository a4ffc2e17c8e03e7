"""What the hooks saw since the last publication. Holds vLLM's own objects, for as long as an entry point runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Notes:
    """Collected by the hooks, said and emptied by the tap.

    `fresh` blocks of vLLM's were taken from the free queue, `touched` are others that may have changed; `dirty` are ids
    of requests whose tables may have changed in any way. Times are CLOCK_MONOTONIC nanoseconds.
    """

    touched: list[Any] = field(default_factory=list)
    fresh: list[Any] = field(default_factory=list)
    dirty: set[str] = field(default_factory=set)
    arrived: list[Any] = field(default_factory=list)
    preempted: list[tuple[Any, int]] = field(default_factory=list)
    """Requests, and the tokens they had computed."""
    ending: list[tuple[Any, int]] = field(default_factory=list)
    """Requests that ended, and when they were told to."""
    freed: dict[str, int] = field(default_factory=dict)
    """Ids of requests that gave everything back, and when."""
    hits: list[tuple[Any, int]] = field(default_factory=list)
    """Requests that were admitted with a look-up in the prefix cache, and the tokens found."""
    popped: list[tuple[Any, str]] = field(default_factory=list)
    """Lists of blocks whose return may be deferred, and the request that held them."""
    copied: list[Any] = field(default_factory=list)
    """Entries of the deferred frees that are ends of copies."""
    pinned: list[tuple[Any, int]] = field(default_factory=list)
    """Blocks of which a KV connector took (1) or gave back (-1) a reference of its own."""
    in_connector: bool = False
    """A method of the KV connector runs."""
    evictions: int = 0
    all_cached: bool = False
    """The whole prefix cache was reset."""
    cancelled_by_engine: bool = False
    ended_inside: bool = False
    """Requests were told to end, maybe in the middle of another entry point."""

    def quiet(self) -> bool:
        """Whether nothing was noted but blocks that were allocated, as in a step where running requests go on."""
        return not (
            self.touched or self.dirty or self.arrived or self.preempted or self.ending
            or self.freed or self.hits or self.popped or self.copied or self.pinned or self.all_cached
            or self.ended_inside
        )  # fmt: skip

    def clear(self) -> None:
        """Empty the notes; the lists stay the same objects, since the hooks hold them."""
        for kept in (
            self.touched, self.fresh, self.dirty, self.arrived, self.preempted,
            self.ending, self.freed, self.hits, self.popped, self.copied, self.pinned,
        ):  # fmt: skip
            if kept:
                kept.clear()
        self.evictions, self.all_cached, self.cancelled_by_engine, self.ended_inside = 0, False, False, False
