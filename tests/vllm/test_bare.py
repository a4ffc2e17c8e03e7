"""vLLM's own scheduler under random work: after every call, every count of the ledger is what its objects say."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvledger.status import ReadStatus, frozen_after_seconds, status_of
from kvledger.words import WaitCause
from kvledger_agent.ledger_source import LedgerSource
from tests.vllm.mirrored import Mirrored, Work, mirrored, six_requests
from tests.vllm.tally import Tally
from tests.vllm.truth import differences, ledger_counts, truth_of


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


@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
def test_a_request_whose_early_blocks_left_the_window_keeps_its_computed_tokens(
    tiny_model: Path, ledger_directory: Path, asynchronous: bool
) -> None:
    """Its table begins anew in the ledger when the window moves: what it has computed is not lost with it."""
    with mirrored(tiny_model, ledger_directory, blocks=101, seed=17, asynchronous=asynchronous, window=64) as mirror:
        for number in range(3):
            mirror.bare.add(f"r{number}", [5 + number] * 40, max_tokens=150)
        left = 0
        before: dict[int, int] = {}
        for number in range(140):
            mirror.bare.step()
            mirror.check(f"step {number}")  # computed tokens of running requests among all else
            seen = ledger_counts(mirror.reader)
            assert all(seen["computed"][name] >= tokens for name, tokens in before.items() if name in seen["computed"])
            before = seen["computed"]
            left = max(left, sum(len(full) - len(windowed) for full, windowed in seen["tables"].values()))
        assert left > 3, "no block left the window"


def test_one_beginning_that_all_share_is_held_by_all_and_every_second_of_it_split(
    tiny_model: Path, ledger_directory: Path
) -> None:
    with mirrored(tiny_model, ledger_directory, blocks=201, seed=18, max_num_seqs=64) as mirror:
        tally = Tally(mirror)
        beginning = [5 + number % 400 for number in range(320)]
        mirror.bare.add("first", [*beginning, 3], max_tokens=200)
        for _ in range(4):
            mirror.bare.step()
        for number in range(60):
            mirror.bare.add(f"r{number}", [*beginning, 7 + number], max_tokens=20 + number)
        for number in range(30):
            mirror.bare.step()
            mirror.check(f"step {number}")
            audit = mirror.reader.audit()
            most = int(audit.column("ref_count").max())
            if number == 10:
                assert most == 61
        assert int((audit.column("ref_count") > 40).sum()) == 20
        logical, active = ledger_counts(mirror.reader)["logical"], ledger_counts(mirror.reader)["active"]
        assert logical > 8 * active
        mirror.bare.drain()
        mirror.bare.abort(*mirror.scheduler.requests)
        mirror.check("all aborted")
        records = mirror.reader.summaries(0).records
        seconds = dict(zip(records["id_hash"].tolist(), records["block_seconds"].tolist(), strict=True))
        assert seconds == pytest.approx(dict(tally.block_seconds), rel=1e-6, abs=1e-9)


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


def test_a_head_that_the_pool_has_room_for_waits_for_a_budget_that_the_steps_tokens_do_not_show(
    tiny_model: Path, ledger_directory: Path
) -> None:
    """As with images, whose encoder computes and keeps only so much a step: vLLM's own way out of its scan."""
    with mirrored(tiny_model, ledger_directory, blocks=65, seed=14, asynchronous=False) as mirror:
        scheduler = mirror.scheduler
        scheduler._try_schedule_encoder_inputs = lambda request, computed, new, budget, **_: ([], 0, budget, [], [])
        mirror.bare.add("image", [5] * 200, max_tokens=4)
        scheduler.requests["image"].mm_features = [object()]
        mirror.bare.add("text", [6] * 20, max_tokens=4)
        for number in range(3):
            mirror.bare.step()
            mirror.check(f"step {number}")
            assert mirror.causes() == {WaitCause.TOKEN_BUDGET}
        assert mirror.reader.sample().stats.counter("allocation_failures_total") == 0
        scheduler.requests["image"].mm_features = []
        mirror.bare.step()
        mirror.check("admitted")
        assert not mirror.causes()


def test_who_stands_behind_a_deferred_request_waits_for_what_stops_the_scan(
    tiny_model: Path, ledger_directory: Path
) -> None:
    with mirrored(tiny_model, ledger_directory, blocks=33, seed=15, asynchronous=False) as mirror:
        mirror.bare.add("first", [5] * 300, max_tokens=90)
        mirror.bare.step()
        mirror.bare.add("grammar", [7] * 20, max_tokens=4, pattern="t5( t6)*")
        mirror.bare.add("second", [6] * 400, max_tokens=4)
        for number in range(4):
            mirror.bare.step()
            mirror.check(f"step {number}")
        assert mirror.causes() == {WaitCause.DEFERRED, WaitCause.POOL}


@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
def test_a_full_pause_is_idle_for_as_long_as_it_lasts_and_not_frozen(
    tiny_model: Path, ledger_directory: Path, asynchronous: bool
) -> None:
    with mirrored(tiny_model, ledger_directory, blocks=129, seed=16, asynchronous=asynchronous) as mirror:
        six_requests(mirror, 16)
        mirror.bare.add("late", [9] * 40, max_tokens=4)
        states = type(mirror.scheduler.pause_state)
        mirror.scheduler.set_pause_state(states.PAUSED_ALL)
        mirror.bare.drain()
        mirror.check("paused")
        assert not mirror.scheduler.has_requests()
        sample = mirror.reader.sample()
        assert (sample.stats.whole("running"), sample.stats.whole("waiting")) == (6, 1)
        assert mirror.causes() == {WaitCause.PAUSED}
        # vLLM runs no step now, for hours maybe: that no heartbeat comes says nothing.
        idle = LedgerSource(mirror.reader).look().liveness.idle
        assert (idle, sample.control["idle_since_ns"] > 0) == (True, True)
        after_an_hour = status_of(
            abandoned=False,
            closed=False,
            locked=True,
            idle=bool(idle),
            heartbeat_age_seconds=3600.0,
            frozen_after_seconds=frozen_after_seconds(sample.stats),
        )
        assert after_an_hour is ReadStatus.IDLE
        mirror.scheduler.set_pause_state(states.UNPAUSED)
        mirror.bare.step()
        mirror.check("resumed")
        assert (mirror.causes(), mirror.reader.sample().control["idle_since_ns"]) == (set(), 0)


def test_a_pause_is_the_cause_of_every_wait_until_it_is_over(tiny_model: Path, ledger_directory: Path) -> None:
    with mirrored(tiny_model, ledger_directory, blocks=129, seed=8) as mirror:
        six_requests(mirror, 8)
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
        six_requests(mirror, seed)
        mirror.check("before")
        assert mirror.named() == set()
        wrong = defect(mirror)
        assert mirror.named() == wrong
        assert mirror.corrections() == 0


def miscounted(mirror: Mirrored) -> set[tuple[str, int, int]]:
    """A reference appears that nobody has."""
    block = mirror.tables["r1"][-1]
    block.ref_cnt += 2
    return {("excess_reference", block.block_id, 2)}


def forgotten(mirror: Mirrored) -> set[tuple[str, int, int]]:
    """A block that waits for its next use is no longer found by its content."""
    _cached(mirror).reset_hash()
    return set()


def remembered(mirror: Mirrored) -> set[tuple[str, int, int]]:
    """A free block is found by a content."""
    free = mirror.pool.blocks[mirror.pool.num_gpu_blocks - 1]
    assert (free.ref_cnt, free.block_hash) == (0, None)
    free._block_hash = _cached(mirror).block_hash
    return set()


def dropped(mirror: Mirrored) -> set[tuple[str, int, int]]:
    """A free block leaves the free queue, and nobody has it."""
    free = mirror.pool.blocks[mirror.pool.num_gpu_blocks - 1]
    mirror.pool.free_block_queue.remove(free)
    return {("lost_block", free.block_id, 1)}


def queued_too(mirror: Mirrored) -> set[tuple[str, int, int]]:
    """A block that is in use is in the free queue, too."""
    block = mirror.tables["r1"][-1]
    mirror.pool.free_block_queue.append(block)
    return {("double_listed", block.block_id, 1)}


def _cached(mirror: Mirrored) -> Any:
    mirror.bare.abort("r5")
    return next(b for b in mirror.pool.blocks[1:] if not b.ref_cnt and b.block_hash is not None)


@pytest.mark.parametrize("change", [miscounted, forgotten, remembered, dropped, queued_too])
def test_what_changes_by_no_way_that_is_watched_is_found_by_the_scan_and_named_if_it_is_wrong(
    tiny_model: Path, ledger_directory: Path, change: Callable[[Mirrored], set[tuple[str, int, int]]]
) -> None:
    with mirrored(tiny_model, ledger_directory, blocks=129, seed=4) as mirror:
        six_requests(mirror, 4)
        mirror.check("before")
        wrong = change(mirror)
        assert (mirror.named(), mirror.corrections()) == (set(), 0)
        tap = mirror.instrument.tap
        assert tap is not None
        for _ in range(17):  # of stretches of a sixteenth of the pool each
            tap.stretch.due_ns = 0
            mirror.scheduler.set_pause_state(mirror.scheduler._pause_state)
        assert (mirror.named(), mirror.corrections()) == (wrong, 1)
        # vLLM's own count of its queue goes with the queue, right or wrong.
        differing = differences(truth_of(mirror.scheduler), ledger_counts(mirror.reader)).keys()
        assert differing == ({"free"} if change in (dropped, queued_too) else set())


def test_a_table_that_changed_without_a_word_is_found_and_everything_told_anew(
    tiny_model: Path, ledger_directory: Path
) -> None:
    with mirrored(tiny_model, ledger_directory, blocks=129, seed=4) as mirror:
        six_requests(mirror, 4)
        mirror.check("before")
        mirror.tables["r2"].reverse()
        assert mirror.instrument.tap is not None
        mirror.instrument.tap.proof.rest_ns = 0
        for _ in range(4):  # of four requests told of in each, and one in which all are
            mirror.bare.step()
            assert mirror.instrument.await_applied()
        assert differences(truth_of(mirror.scheduler), ledger_counts(mirror.reader)) == {}
        assert (mirror.instrument.switch.on, mirror.corrections()) == (True, 1)


def test_the_scan_comes_round_by_itself_within_its_time(tiny_model: Path, ledger_directory: Path) -> None:
    with mirrored(tiny_model, ledger_directory, blocks=129, seed=4) as mirror:
        six_requests(mirror, 4)
        wrong = miscounted(mirror)
        until = time.monotonic() + 25
        while not mirror.corrections() and time.monotonic() < until:
            mirror.scheduler.set_pause_state(mirror.scheduler._pause_state)
        assert (mirror.named(), mirror.corrections()) == (wrong, 1)
