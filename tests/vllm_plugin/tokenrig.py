"""`Tokens` alone over a ledger in memory, with made-up requests and steps: any order of scheduling and updating."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kvledger_vllm.delayed import Delayed

from kvledger.clock import VirtualClock
from kvledger.limits import Group, Limits
from kvledger.reader import Reader
from kvledger.source import MemorySource
from kvledger.words import RequestState
from kvledger.writer import Ledger
from kvledger_vllm.requests import Requests
from kvledger_vllm.tokens import Tokens

Counts = dict[str, tuple[int, int]]


@dataclass
class Asked:
    """What the instrument reads of a vLLM request."""

    request_id: str
    num_prompt_tokens: int
    max_tokens: int = 10**6
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    arrival_time: float = 0.0
    status: Any = field(default_factory=lambda: SimpleNamespace(name="RUNNING"))


class TokenRig:
    """A scheduler of requests by name; each call is one publication."""

    def __init__(self, slots: int = 64) -> None:
        groups = (Group(name="full", block_size_tokens=16),)
        self.clock = VirtualClock()
        self.ledger = Ledger.in_memory(
            Limits(engine="tokens", capacity_blocks=8, max_requests=slots, groups=groups), clock=self.clock
        )
        self.scheduler = SimpleNamespace(requests=dict[str, Asked]())
        self.requests, self.delayed = Requests(self.ledger, reserve=0), Delayed()
        self.tokens = Tokens(self.ledger, self.requests, self.scheduler, self.delayed)
        self.reader = Reader.over(MemorySource(self.ledger.image))

    def admit(self, request: Asked) -> None:
        """A request runs from now on."""
        self.scheduler.requests[request.request_id] = request
        with self:
            slot = self.requests.require(request)
            self.requests.move(slot, RequestState.RUNNING)
            self.tokens.admitted(request)

    def schedule(self, counts: dict[str, int]) -> Any:
        """A step in which these requests compute so many tokens each; its output."""
        for name, count in counts.items():
            self.scheduler.requests[name].num_computed_tokens += count
        output = SimpleNamespace(num_scheduled_tokens=dict(counts), total_num_scheduled_tokens=sum(counts.values()))
        with self:
            self.tokens.scheduled(output)
        return output

    def update(self, output: Any, sampled: list[str]) -> None:
        """A step's output is applied: these requests generated a token."""
        for name in sampled:
            self.scheduler.requests[name].num_output_tokens += 1
        with self:
            self.tokens.updated(output, len(sampled))

    def end(self, name: str) -> None:
        """A request ends."""
        with self:
            self.tokens.leave(name)
            self.tokens.ended(name)
            self.requests.leave(name)
        del self.scheduler.requests[name]

    def seen(self) -> Counts:
        """(computed, generated) of every request, as a reader of the ledger sees them."""
        slots = self.reader.sample().slots
        assert slots.settled.all()
        return {
            name.decode(): (int(computed), int(output))
            for name, computed, output in zip(
                slots.id_head.tolist(), slots.computed_tokens, slots.output_tokens, strict=True
            )
        }

    def true(self) -> Counts:
        """The same of the requests themselves."""
        return {
            name: (request.num_computed_tokens, request.num_output_tokens)
            for name, request in self.scheduler.requests.items()
        }

    def generated(self) -> int:
        """The counter of generated tokens."""
        return int(self.reader.sample().stats.counter("generation_tokens_total") or 0)

    def __enter__(self) -> None:
        self.clock.advance(7_000_000)
        self.ledger.begin()

    def __exit__(self, *error: object) -> None:
        self.delayed.flush(self.ledger.now_ns, idle=False)
        self.ledger.end()
