"""A tap and the publisher of its messages in one process, with made-up requests and steps: any order of these."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kvledger.limits import Group, Limits
from kvledger.reader import Reader
from kvledger.source import MemorySource
from kvledger.writer import Ledger
from kvledger_vllm.message import OTHER, SCHEDULE, UPDATE, Message, unpacked
from kvledger_vllm.messageclock import MessageClock
from kvledger_vllm.notes import Notes
from kvledger_vllm.publication import Publisher
from kvledger_vllm.tap import Tap
from tests.vllm_plugin.fakes import BLOCKS, Scheduler

Counts = dict[str, tuple[int, int]]


@dataclass
class Asked:
    """What the instrument reads of a vLLM request."""

    request_id: str
    num_prompt_tokens: int
    max_tokens: int = 10**6
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_tokens: int = 0
    arrival_time: float = 0.0
    status: Any = field(default_factory=lambda: SimpleNamespace(name="RUNNING"))


class Straight:
    """A channel without a way: each message is in the ledger when it was sent."""

    size = 1 << 30

    def __init__(self, ledger: Ledger, clock: MessageClock) -> None:
        self.wanted = self.sent = 0
        self.messages = list[Message]()
        self._publisher = Publisher(ledger, clock)

    def send(self, packed: bytes) -> bool:
        """Apply it."""
        self.sent += 1
        for message in unpacked(packed):
            self.messages.append(message)
            if self._publisher.gather(message):
                self._publisher.settle()
            else:
                self.wanted += not self._publisher.publish(message)
        return True


class TokenRig:
    """A scheduler of requests by name; each call is one publication."""

    def __init__(self, slots: int = 64) -> None:
        limits = Limits(
            engine="tokens",
            capacity_blocks=BLOCKS - 1,
            max_requests=slots,
            groups=(Group(name="full", block_size_tokens=16),),
        )
        clock = MessageClock(time.monotonic_ns())
        self.ledger = Ledger.in_memory(limits, clock=clock)
        self.scheduler, self.notes = Scheduler(), Notes()
        self.channel = Straight(self.ledger, clock)
        self.tap = Tap(self.scheduler, self.notes, self.channel, lambda _, surely: "")  # type: ignore[arg-type]
        self.reader = Reader.over(MemorySource(self.ledger.image))
        self._new: list[str] = []
        self.at_once = True
        """What may be said with the next message is said by itself."""
        self.tap.proof.rest_ns = 0
        self.tap.rare.want_all()
        self._publish(OTHER)

    def admit(self, request: Asked) -> None:
        """A request came, or begins anew, and runs in the next step that names it."""
        if request.request_id not in self.scheduler.requests:
            self.notes.arrived.append(request)
        self.scheduler.requests[request.request_id] = request
        self._new.append(request.request_id)
        self._publish(OTHER)

    def schedule(self, counts: dict[str, int]) -> Any:
        """A step in which these requests compute so many tokens each; its output."""
        for name, count in counts.items():
            self.scheduler.requests[name].num_computed_tokens += count
        new = [name for name in self._new if name in counts]
        self._new = [name for name in self._new if name not in counts]
        running = self.scheduler.running
        running += [self.scheduler.requests[n] for n in new if self.scheduler.requests[n] not in running]
        output = SimpleNamespace(
            num_scheduled_tokens=dict(counts),
            total_num_scheduled_tokens=sum(counts.values()),
            scheduled_new_reqs=[SimpleNamespace(req_id=name) for name in new],
            scheduled_cached_reqs=SimpleNamespace(req_ids=[], new_block_ids=[], resumed_req_ids=set()),
        )
        self._publish(SCHEDULE, output)
        return output

    def update(self, output: Any, sampled: list[str]) -> None:
        """A step's output is applied: these requests generated a token."""
        for name in sampled:
            self.scheduler.requests[name].num_output_tokens += 1
        outputs = {0: SimpleNamespace(outputs=list(sampled))}
        tokens = [[5] if name in sampled else [] for name in output.num_scheduled_tokens]
        self._publish(UPDATE, output, False, outputs, SimpleNamespace(sampled_token_ids=tokens))

    def end(self, name: str) -> None:
        """A request ends."""
        request = self.scheduler.requests.pop(name)
        if request in self.scheduler.running:
            self.scheduler.running.remove(request)
        request.status = SimpleNamespace(name="FINISHED_STOPPED")
        now = time.monotonic_ns()
        self.notes.ending.append((request, now))
        self.notes.freed[name] = now
        self._publish(OTHER)

    def preempt(self, name: str) -> None:
        """A running request loses what it has computed, and waits."""
        request = self.scheduler.requests[name]
        self.notes.preempted.append((request, request.num_computed_tokens))
        request.num_computed_tokens, request.num_preemptions = 0, request.num_preemptions + 1
        self.scheduler.running.remove(request)
        self._new.append(name)
        self._publish(OTHER)

    def find(self, name: str, tokens: int) -> None:
        """The next admission finds so many tokens of a request in the prefix cache."""
        request = self.scheduler.requests[name]
        request.num_computed_tokens = tokens
        self.notes.hits.append((request, tokens))

    def _publish(self, kind: int, *said: Any) -> None:
        now = time.monotonic_ns()
        self.tap.publish(kind, now, now, *said)
        if self.at_once:
            self.tap.tell()

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

    def corrections(self) -> int:
        """How often the ledger was put right."""
        return self.reader.sample().control["mirror_corrections"]
