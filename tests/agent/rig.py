"""A ledger in this process's memory, a writer to drive it, and the agent's own source looking at it."""

from __future__ import annotations

import time
from typing import Any

from kvledger.clock import VirtualClock
from kvledger.layout import CONTROL_INDEX
from kvledger.reader import Reader
from kvledger.source import MemorySource
from kvledger.writer import Ledger
from kvledger_agent.ledger_source import LedgerSource
from kvledger_agent.observation import Observation
from tests.engine.rig import Rig
from tests.ledger.toy import Toy, toy_limits

NS = 1_000_000_000


def source_over(ledger: Ledger, *, live: bool = True, **options: Any) -> LedgerSource:
    """The agent's source over a ledger in memory; its writer is taken to live unless `live` is False."""
    return LedgerSource(Reader.over(MemorySource(ledger.image, writer_lives=live)), **options)


class ToyWatch:
    """A toy engine on a virtual clock with the agent watching: one publication and one look a second."""

    def __init__(self, seed: int = 0, **limits: Any) -> None:
        self.clock = VirtualClock()
        self.ledger = Ledger.in_memory(toy_limits(**limits), clock=self.clock)
        self.toy = Toy(self.ledger, seed)
        self.source = source_over(self.ledger)

    def publish(self, *, idle: bool = False) -> None:
        """An empty publication."""
        self.ledger.begin()
        self.toy.count()
        self.ledger.end(idle=idle)

    def look(self) -> Observation:
        """A second passes, the engine publishes, the agent looks."""
        self.clock.advance(NS)
        self.publish()
        return self.source.look()

    def looks(self, times: int) -> Observation:
        """So many seconds; the last look."""
        for _ in range(times):
            observation = self.look()
        return observation

    def admit(self, blocks: int = 3, shared: list[int] | None = None) -> int:
        """A request with some blocks, in a publication of its own; its slot."""
        self.ledger.begin()
        slot = self.toy.admit(blocks, shared)
        # Others may share what it has computed; it would have to copy before it wrote there.
        self.toy.slots.own_from_token[slot] = self.toy.slots.computed_tokens[slot]
        self.toy.count()
        self.ledger.end()
        return slot

    def skip_free(self, slot: int) -> list[int]:
        """The fault: end a request, drop its table, keep the references of its blocks. The blocks."""
        self.ledger.begin()
        named = self.toy.drop_tables(slot)
        self.toy.slots.computed_tokens[slot] = self.toy.slots.own_from_token[slot] = 0
        self.toy.finish(slot)
        self.toy.count()
        self.ledger.end()
        return named

    def final(self, *, cut_short: bool = False) -> LedgerSource:
        """A new source over what is left when the engine is gone, inside a publication if `cut_short`."""
        if cut_short:
            self.ledger.begin()
        return source_over(self.ledger, live=False)

    def set_control(self, name: str, value: int) -> None:
        """Store one control word."""
        self.ledger.control[CONTROL_INDEX[name]] = value


class RealWatch:
    """A toy engine on the real clock; the agent looks at times of the test's choosing."""

    def __init__(self) -> None:
        self.ledger = Ledger.in_memory(toy_limits())
        self.toy = Toy(self.ledger)
        self.source = source_over(self.ledger)
        self.start_ns = time.monotonic_ns()

    def publish(self, *, idle: bool = False) -> None:
        """An empty publication at the real time."""
        self.ledger.begin()
        self.toy.count()
        self.ledger.end(idle=idle)

    def look(self, seconds: float) -> Observation:
        """The agent's look when it is `seconds` after the start for it."""
        return self.source.look(self.start_ns + int(seconds * NS))


class EngineWatch(Rig):
    """The reference engine on a virtual clock, with the agent watching."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.source = source_over(self.ledger)

    def look(self) -> Observation:
        """The agent's look now."""
        return self.source.look()
