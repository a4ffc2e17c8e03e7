"""vLLM's own scheduler under random work: after every call, every count of the ledger is what its objects say."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kvledger.invariants import counts, suspects
from kvledger.reader import Reader
from kvledger.source import MemorySource
from kvledger.words import WaitCause
from kvledger_agent.ledger_source import LedgerSource
from kvledger_vllm.attach import Instrument, attach
from kvledger_vllm.settings import Settings
from tests.vllm.bare import BareScheduler
from tests.vllm.truth import differences, ledger_counts, truth_of

_engines = count()
Words = list[int]


class Mirrored:
    """A bare scheduler, its instrument, and a reader of its ledger."""

    def __init__(self, bare: BareScheduler, instrument: Instrument) -> None:
        assert instrument.ledger is not None, instrument.switch.why
        self.bare, self.scheduler, self.instrument = bare, bare.scheduler, instrument
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.tables = self.scheduler.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks
        self.reader = Reader.over(MemorySource(instrument.ledger.image))

    def check(self, what: str) -> None:
        """The ledger says what vLLM says, and nothing of it is suspect."""
        assert self.instrument.switch.on, (what, self.instrument.switch.why)
        assert differences(truth_of(self.scheduler), ledger_counts(self.reader)) == {}, what
        audit = self.reader.audit()
        assert (suspects(audit), counts(self.reader.sample(), audit), [*audit.damage]) == ([], {}, []), what

    def named(self) -> set[tuple[str, int, int]]:
        """What the ledger finds wrong: (kind, vLLM's block, by how many)."""
        return {(found.kind.word, found.block + 1, found.excess) for found in suspects(self.reader.audit())}

    def causes(self) -> set[int]:
        """What requests wait for now."""
        return {cause for cause in self.reader.sample().wait_causes().tolist() if cause >= 0}

    def corrections(self) -> int:
        """Blocks that changed by no way that is watched."""
        return self.reader.sample().control["mirror_corrections"]


@contextmanager
def mirrored(model: Path, directory: Path, *, blocks: int, seed: int, **options: Any) -> Iterator[Mirrored]:
    bare = BareScheduler(model, blocks=blocks, seed=seed, **options)
    instrument = attach(bare.scheduler, Settings(directory=directory, engine=f"bare-{next(_engines)}"))
    try:
        yield Mirrored(bare, instrument)
    finally:
        if instrument.ledger is not None:
            instrument.ledger.close()


class Work:
    """Random calls of a scheduler, checked after each."""

    def __init__(self, mirror: Mirrored, seed: int) -> None:
        self.mirror, self.bare, self.random = mirror, mirror.bare, random.Random(seed)
        self.prefixes = [self.words(200) for _ in range(3)]
        self.ids = count()

    def words(self, number: int) -> Words:
        return [self.random.randrange(3, 512) for _ in range(number)]

    def call(self) -> str:
        """Make one call; its name."""
        drawn, requests = self.random.random(), self.bare.scheduler.requests
        if drawn < 0.3 and len(requests) < 40:
            return self.arrive()
        if drawn < 0.36 and requests:
            self.bare.abort(self.random.choice(list(requests)))
            return "abort"
        if drawn < 0.37:
            self.bare.scheduler.reset_prefix_cache()
            return "reset"
        if drawn < 0.375:
            self.bare.drain()
            self.bare.scheduler.reset_prefix_cache(reset_running_requests=True)
            return "reset with the running"
        self.bare.schedule()
        self.mirror.check("schedule")
        if self.bare.full():
            self.bare.update()
        return "update"

    def arrive(self) -> str:
        prompt = self.random.choice(self.prefixes)[: self.random.randrange(1, 200)]
        salt = {"cache_salt": "salt"} if self.random.random() < 0.2 else {}
        self.bare.add(
            f"cmpl-{next(self.ids):032d}-0-abcdef12",
            prompt + self.words(self.random.randrange(1, 60)),
            max_tokens=self.random.randrange(1, 120),
            **salt,
        )
        return "arrival"


@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize(("seed", "blocks"), [(1, 65), (2, 65), (3, 401)])
def test_whatever_happens_to_a_scheduler_its_ledger_says_what_its_objects_say(
    tiny_model: Path, ledger_directory: Path, asynchronous: bool, seed: int, blocks: int
) -> None:
    with mirrored(tiny_model, ledger_directory, blocks=blocks, seed=seed, asynchronous=asynchronous) as mirror:
        work = Work(mirror, seed)
        mirror.check("start")
        for number in range(500):
            mirror.check(f"{number}: {work.call()}")
        mirror.bare.drain()
        mirror.check("drain")
        mirror.bare.abort(*mirror.scheduler.requests)
        mirror.check("all aborted")
        stats = mirror.reader.sample().stats
        assert (stats.counter("preemptions_total", mode="recompute") or 0) > 0 or blocks > 65
        assert (stats.counter("prefix_hit_tokens_total") or 0) > 0
        assert mirror.corrections() == 0


@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
def test_a_long_run_of_the_same_requests_is_counted_token_for_token(
    tiny_model: Path, ledger_directory: Path, asynchronous: bool
) -> None:
    with mirrored(tiny_model, ledger_directory, blocks=601, seed=5, asynchronous=asynchronous) as mirror:
        for number in range(12):
            mirror.bare.add(f"r{number}", [3 + number] * (20 + number), max_tokens=300)
        for number in range(150):
            mirror.bare.step()
            mirror.check(f"step {number}")
        before = mirror.reader.sample().stats.counter("generation_tokens_total") or 0
        mirror.bare.abort("r3")
        mirror.check("one aborted")
        for number in range(40):
            mirror.bare.step()
            mirror.check(f"step {number} without it")
        mirror.bare.drain()
        mirror.check("drain")
        generated = sum(request.num_output_tokens for request in mirror.scheduler.requests.values())
        # What every step observes is counted once a second, and at once when the engine has nothing to do.
        mirror.bare.abort(*mirror.scheduler.requests)
        mirror.bare.step()
        mirror.bare.drain()
        mirror.check("idle")
        of_it = mirror.reader.sample().stats
        assert (of_it.counter("generation_tokens_total") or 0) >= before
        gaps = of_it.histogram("inter_token_latency", **{"class": "default"})
        firsts = of_it.histogram("time_to_first_token", **{"class": "default"})
        assert gaps is not None
        assert firsts is not None
        assert firsts.count == 12
        assert gaps.count + firsts.count == of_it.counter("generation_tokens_total") > generated


@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
def test_sliding_window_layers_are_a_group_that_gives_blocks_back_while_its_request_runs(
    tiny_model: Path, ledger_directory: Path, asynchronous: bool
) -> None:
    with mirrored(
        tiny_model,
        ledger_directory,
        blocks=101,
        seed=6,
        asynchronous=asynchronous,
        window=64,
        max_num_batched_tokens=96,
    ) as mirror:
        work = Work(mirror, 6)
        released = 0
        for number in range(300):
            mirror.check(f"{number}: {work.call()}")
            full, windowed = (
                mirror.reader.sample().slots.table_blocks.sum(0).tolist() if len(mirror.scheduler.requests) else (0, 0)
            )
            released = max(released, full - windowed)
        mirror.bare.drain()
        mirror.bare.abort(*mirror.scheduler.requests)
        mirror.check("all aborted")
        assert released > 10, "no block ever left the window"
        assert mirror.corrections() == 0


def test_a_request_that_the_whole_pool_cannot_hold_is_counted_as_one_that_never_fits(
    tiny_model: Path, ledger_directory: Path
) -> None:
    with mirrored(tiny_model, ledger_directory, blocks=33, seed=7) as mirror:
        mirror.bare.add("fits", [5] * 100, max_tokens=4)
        mirror.bare.add("never", [7] * 1000, max_tokens=4)
        for number in range(20):
            mirror.bare.step()
            mirror.check(f"step {number}")
        seen = LedgerSource(mirror.reader).look()
        assert seen.requests is not None
        assert seen.requests.never_fit == 1
        assert {cause for (cause, *_), number in (seen.requests.waiting or {}).items() if number} == {"pool"}


def test_the_head_waits_for_a_seat_for_the_steps_tokens_or_after_a_preemption_and_all_behind_it_too(
    tiny_model: Path, ledger_directory: Path
) -> None:
    with mirrored(tiny_model, ledger_directory, blocks=129, seed=11, max_num_seqs=2, asynchronous=False) as mirror:
        for number in range(5):
            mirror.bare.add(f"r{number}", [5 + number] * 40, max_tokens=50)
        assert mirror.causes() == {WaitCause.STEP}
        mirror.bare.step()
        mirror.check("two seats")
        assert mirror.causes() == {WaitCause.BATCH_SLOTS}
    with mirrored(
        tiny_model, ledger_directory, blocks=129, seed=12, max_num_batched_tokens=64, asynchronous=False
    ) as mirror:
        for number in range(3):
            mirror.bare.add(f"r{number}", [5 + number] * 300, max_tokens=20)
        mirror.bare.step()
        mirror.check("64 tokens")
        assert mirror.causes() == {WaitCause.TOKEN_BUDGET}
    with mirrored(tiny_model, ledger_directory, blocks=9, seed=13, asynchronous=False) as mirror:
        for number in range(3):
            mirror.bare.add(f"r{number}", [5 + number] * 38, max_tokens=80)
        seen, lost = set[int](), 0
        for number in range(300):
            before = {i: r.num_computed_tokens for i, r in mirror.scheduler.requests.items()}
            times = {i: r.num_preemptions for i, r in mirror.scheduler.requests.items()}
            mirror.bare.step()
            mirror.check(f"step {number}")
            seen |= mirror.causes()
            lost += sum(before[i] for i, r in mirror.scheduler.requests.items() if r.num_preemptions > times[i])
        assert {WaitCause.POOL, WaitCause.PREEMPTION} <= seen
        stats = mirror.reader.sample().stats
        hit = sum(value for value in (stats.counter("prefix_hit_tokens_total"),) if value)
        assert lost > 0
        assert 0 < (stats.counter("recomputed_tokens_total") or 0) <= lost + hit


def test_a_pause_is_the_cause_of_every_wait_until_it_is_over(tiny_model: Path, ledger_directory: Path) -> None:
    with mirrored(tiny_model, ledger_directory, blocks=129, seed=8) as mirror:
        _six_requests(mirror, 8)
        paused = type(mirror.scheduler._pause_state).PAUSED_NEW
        resumed = mirror.scheduler._pause_state
        mirror.scheduler.set_pause_state(paused)
        mirror.bare.add("late", [9] * 40, max_tokens=4)
        for number in range(3):
            mirror.bare.step()
            mirror.check(f"paused {number}")
        assert mirror.causes() == {WaitCause.PAUSED}
        mirror.scheduler.set_pause_state(resumed)
        mirror.bare.step()
        mirror.check("resumed")
        assert not mirror.causes()


def test_priorities_are_followed_and_name_the_tenant(tiny_model: Path, ledger_directory: Path) -> None:
    with mirrored(
        tiny_model, ledger_directory, blocks=25, seed=9, scheduling_policy="priority", max_num_seqs=4
    ) as mirror:
        drawn = random.Random(9)
        for number in range(60):
            prompt = [drawn.randrange(3, 512) for _ in range(drawn.randrange(20, 150))]
            mirror.bare.add(f"r{number}", prompt, max_tokens=60, priority=number % 3)
            mirror.check(f"arrival {number}")
            for _ in range(3):
                mirror.bare.step()
                mirror.check(f"step after {number}")
        stats = mirror.reader.sample().stats
        assert (stats.counter("preemptions_total", mode="recompute") or 0) > 0
        assert {"priority-1", "priority-2"} <= set(mirror.reader.sample().tenants)


def test_an_adapter_is_a_tenant_and_goes_before_salt_and_priority(tiny_model: Path, ledger_directory: Path) -> None:
    from vllm.lora.request import LoRARequest

    with mirrored(tiny_model, ledger_directory, blocks=65, seed=10) as mirror:
        tuned = LoRARequest("tuned", 1, "/nowhere")
        mirror.bare.add("one", [5] * 50, max_tokens=4, lora_request=tuned, cache_salt="salt", priority=3)
        for number in range(8):
            mirror.bare.step()
            mirror.check(f"step {number}")
        mirror.bare.drain()
        mirror.check("drain")
        ended = mirror.reader.sample().stats.tenant_counter("requests_total", finish_reason="length")
        assert {name for name, number in (ended or {}).items() if number} == {"adapter-tuned"}


def skipped_free(mirror: Mirrored) -> set[tuple[str, int, int]]:
    """vLLM forgets to give an aborted request's blocks back."""
    held = {("excess_reference", block.block_id, 1) for block in mirror.tables["r2"]}
    freeing = mirror.pool.free_blocks
    mirror.pool.free_blocks = lambda blocks: None
    mirror.bare.abort("r2")
    mirror.pool.free_blocks = freeing
    return held


def lost_decrement(mirror: Mirrored) -> set[tuple[str, int, int]]:
    """One reference of a shared block is not given back."""
    block = mirror.tables["r1"][0]
    block.ref_cnt += 1
    mirror.bare.abort("r1")
    return {("excess_reference", block.block_id, 1)}


def double_free(mirror: Mirrored) -> set[tuple[str, int, int]]:
    """A block is given back by somebody who goes on using it."""
    block = mirror.tables["r1"][0]
    mirror.pool.free_blocks([block])
    mirror.bare.abort("r4")
    return {("missing_reference", block.block_id, 1)}


@pytest.mark.parametrize("defect", [skipped_free, lost_decrement, double_free])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_defect_of_the_engines_own_is_named_block_for_block(
    tiny_model: Path,
    ledger_directory: Path,
    defect: Callable[[Mirrored], set[tuple[str, int, int]]],
    seed: int,
) -> None:
    with mirrored(tiny_model, ledger_directory, blocks=129, seed=seed) as mirror:
        _six_requests(mirror, seed)
        mirror.check("before")
        assert mirror.named() == set()
        wrong = defect(mirror)
        assert mirror.named() == wrong
        assert mirror.corrections() == 0


def test_a_count_that_changes_by_no_way_that_is_watched_is_found_by_the_scan(
    tiny_model: Path, ledger_directory: Path
) -> None:
    with mirrored(tiny_model, ledger_directory, blocks=129, seed=4) as mirror:
        _six_requests(mirror, 4)
        mirror.check("before")
        block = mirror.tables["r1"][-1]
        block.ref_cnt += 2
        assert mirror.instrument.ledger is not None
        clock = mirror.instrument.ledger.clock
        until = clock.now_ns() + 25_000_000_000
        while not mirror.corrections() and clock.now_ns() < until:
            mirror.scheduler.set_pause_state(mirror.scheduler._pause_state)
        assert (mirror.named(), mirror.corrections()) == ({("excess_reference", block.block_id, 2)}, 1)


def _six_requests(mirror: Mirrored, seed: int) -> None:
    drawn = random.Random(seed)
    shared = [drawn.randrange(3, 512) for _ in range(120)]
    for number in range(6):
        mirror.bare.add(f"r{number}", shared + [drawn.randrange(3, 512) for _ in range(30)], max_tokens=200)
    for _ in range(12):
        mirror.bare.step()
    mirror.bare.drain()
