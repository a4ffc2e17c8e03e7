"""A row of messages that is applied at once leaves the ledger that the same messages leave one by one."""

from __future__ import annotations

import random
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvledger.limits import Limits
from kvledger.writer import Ledger
from kvledger_vllm.geometry import limits_of
from kvledger_vllm.hooks import Hooks
from kvledger_vllm.message import Message, unpacked
from kvledger_vllm.messageclock import MessageClock
from kvledger_vllm.notes import Notes
from kvledger_vllm.publication import Publisher
from kvledger_vllm.settings import Settings
from kvledger_vllm.switch import Switch
from kvledger_vllm.tables import BlockTables
from kvledger_vllm.tap import Tap
from tests.vllm.bare import BareScheduler

# Publications have other numbers, and who needed a chunk first gets another one: which, no reader asks.
_OTHER = {"changed_seq", "first_chunk", "last_chunk", "table_blocks"}
_OWN_GAUGES = ("seq", "wall_ns")


class Kept:
    """A channel that keeps what was sent."""

    wanted, size = 0, 1 << 30

    def __init__(self) -> None:
        self.messages: list[Message] = []

    @property
    def sent(self) -> int:
        return len(self.messages)

    def send(self, packed: bytes) -> bool:
        self.messages += unpacked(packed)
        return True


def said_of(bare: BareScheduler, seed: int, steps: int) -> list[Message]:
    """What the tap says of random work: long stretches of decoding, arrivals, aborts, pools that are too small."""
    drawn, channel, notes, switch = random.Random(seed), Kept(), Notes(), Switch()
    tap = Tap(bare.scheduler, notes, channel, lambda _, surely: "")  # type: ignore[arg-type]
    hooks = Hooks(bare.scheduler, notes, tap, switch, lambda clean: None)
    hooks.put_in()
    tap.proof.rest_ns = 0
    for step in range(steps):
        if len(bare.scheduler.requests) < 12 and drawn.random() < 0.15:
            prompt = [5] * drawn.randrange(60) + [drawn.randrange(3, 512) for _ in range(drawn.randrange(1, 60))]
            bare.add(f"cmpl-{step:032d}-0-abcdef12", prompt, max_tokens=drawn.randrange(1, 160))
        if bare.scheduler.requests and drawn.random() < 0.01:
            bare.abort(drawn.choice(list(bare.scheduler.requests)))
        if drawn.random() < 0.1:
            tap.stretch.due_ns = 0
        if bare.scheduler.has_requests():
            bare.step()
    bare.drain()
    hooks.remove()
    assert switch.on, switch.why
    return channel.messages


def applied(messages: list[Message], limits: Limits, *, at_once: int, seed: int = 0) -> tuple[Ledger, int]:
    """A ledger after all of them, rows of up to so many among them; how many were applied in a row."""
    drawn, clock = random.Random(seed), MessageClock(messages[0].now_ns - 1_000)
    ledger = Ledger.in_memory(limits, clock=clock)
    publisher, gathered, left = Publisher(ledger, clock), 0, at_once
    for message in messages:
        if left and publisher.gather(message):
            gathered, left = gathered + 1, left - 1
            continue
        publisher.settle()
        assert publisher.publish(message)
        left = drawn.randint(1, at_once) if at_once else 0
    publisher.settle()
    return ledger, gathered


def assert_equal(one: Ledger, other: Ledger) -> None:
    """Both say the same, but for the numbers of their publications."""
    for part in ("blocks", "free", "evict", "slots", "pins", "tenants"):
        mine, theirs = getattr(one, part), getattr(other, part)
        for name in [field.name for field in fields(mine) if field.name not in _OTHER]:
            _same(getattr(mine, name), getattr(theirs, name), f"{part}.{name}")
    for slot in np.flatnonzero(one.slots.serial).tolist():
        assert BlockTables(one, 0).blocks_of(slot) == BlockTables(other, 0).blocks_of(slot), slot
    for name in ("events", "summaries"):
        ring, theirs = getattr(one.rings, name), getattr(other.rings, name)
        for column in set(ring.dtype.names or ()) - {"seq"}:
            _same(ring[column], theirs[column], f"{name}.{column}")
    _same(one.rings.peaks, other.rings.peaks, "peaks")
    mine, theirs = one.stats.array.copy(), other.stats.array.copy()
    for gauge in _OWN_GAUGES:
        mine[one.stats.gauge(gauge)] = theirs[one.stats.gauge(gauge)] = 0
    _same(mine, theirs, "stats")


def _same(one: Any, other: Any, what: str) -> None:
    if one.dtype.kind == "f":
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9, err_msg=what)
    else:
        np.testing.assert_array_equal(one, other, err_msg=what)


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("blocks", [65, 513])
@pytest.mark.parametrize("seed", range(2))
def test_a_row_that_is_applied_at_once_leaves_the_ledger_that_its_messages_leave_one_by_one(
    tiny_model: Path, ledger_directory: Path, asynchronous: bool, blocks: int, seed: int
) -> None:
    bare = BareScheduler(tiny_model, blocks=blocks, seed=seed, asynchronous=asynchronous)
    limits = limits_of(bare.scheduler, Settings(directory=ledger_directory, engine="rows"))
    messages = said_of(bare, seed, 1_200)
    alone, none = applied(messages, limits, at_once=0)
    assert none == 0
    for at_once in (3, 300):
        together, gathered = applied(messages, limits, at_once=at_once, seed=seed)
        assert gathered > 300, "hardly a row"
        assert_equal(alone, together)
