"""Whatever goes wrong in the instrument, vLLM goes on, the log says it once, and the ledger says why."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kvledger_vllm
from kvledger.catalog import BY_NAME
from kvledger.reader import Reader
from kvledger.source import MemorySource
from kvledger.words import Verdict
from kvledger_agent.exporters.families import answer
from kvledger_agent.ledger_source import LedgerSource
from kvledger_agent.verdict.emergencies import emergency
from kvledger_vllm.attach import Instrument, attach
from kvledger_vllm.settings import Settings
from tests.vllm_plugin.fakes import BLOCKS, Scheduler


@pytest.fixture
def instrument(scheduler: Scheduler, directory: Path) -> Iterator[Instrument]:
    attached = attach(scheduler, Settings(directory=directory))
    yield attached
    if attached.stop is not None:
        attached.stop()


def request(name: str) -> SimpleNamespace:
    return SimpleNamespace(
        request_id=name, num_prompt_tokens=5, max_tokens=7, arrival_time=0.0, num_computed_tokens=0, cache_salt="secret"
    )


def reader_of(instrument: Instrument) -> Reader:
    """Of the ledger, once everything that was published is in it; of one whose instrument failed, as it is."""
    assert instrument.ledger is not None
    assert instrument.await_applied() or not instrument.switch.on
    return Reader.over(MemorySource(instrument.ledger.image))


def test_a_scheduler_is_mirrored_without_its_null_block(instrument: Instrument, scheduler: Scheduler) -> None:
    assert (instrument.switch.on, instrument.switch.why) == (True, "")
    assert scheduler.add_request(request("one")) == "added"
    sample = reader_of(instrument).sample()
    assert sample.stats.whole("free_blocks") == sample.head.limits.capacity_blocks == BLOCKS - 1
    assert (len(sample.slots), sample.stats.whole("waiting"), sample.stats.whole("idle")) == (1, 1, 0)


def test_a_salt_is_never_shown(instrument: Instrument, scheduler: Scheduler) -> None:
    scheduler.add_request(request("one"))
    assert instrument.ledger is not None
    assert instrument.await_applied()
    assert b"secret" not in bytes(instrument.ledger.image)
    assert any(name.startswith("salt-") for name in reader_of(instrument).sample().tenants)


def test_an_error_switches_the_instrument_off_and_the_engine_goes_on(
    instrument: Instrument, scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "vllm.kvledger"):
        # "output" has none of what a scheduler output has.
        assert [scheduler.schedule() for _ in range(3)] == ["output"] * 3
    assert not instrument.switch.on
    assert "AttributeError" in instrument.switch.why
    assert len([record for record in caplog.records if record.name == "vllm.kvledger"]) == 1
    sample = reader_of(instrument).sample()
    assert sample.instrument_failure is not None
    assert sample.instrument_failure.startswith("AttributeError")
    judged = emergency(sample, (), {})
    assert judged is not None
    assert judged.verdict is Verdict.UNKNOWN
    assert judged.evidence == f"instrument failed: {sample.instrument_failure}"


def test_an_instrument_that_is_off_has_left_nothing_on_the_scheduler(
    instrument: Instrument, scheduler: Scheduler
) -> None:
    assert "schedule" in vars(scheduler)
    scheduler.schedule()
    pool = scheduler.kv_cache_manager.block_pool
    assert not {"schedule", "add_request", "update_from_output"} & set(vars(scheduler))
    assert not {"get_new_blocks", "touch", "free_blocks"} & set(vars(pool))


def test_what_somebody_else_has_wrapped_since_stays_and_grows_no_notes(
    instrument: Instrument, scheduler: Scheduler
) -> None:
    calls = list[str]()
    ours, theirs_below = scheduler.schedule, scheduler.add_request

    def another_plugin() -> str:
        calls.append("schedule")
        return ours()

    scheduler.schedule = another_plugin  # type: ignore[method-assign]
    scheduler.schedule()
    assert not instrument.switch.on
    assert scheduler.schedule is another_plugin
    assert (scheduler.schedule(), calls) == ("output", ["schedule"] * 2)
    assert scheduler.add_request != theirs_below, "ours is gone where nobody hangs on it"
    assert instrument.tap is not None
    theirs_below(request("late"))
    scheduler.schedule()
    assert not instrument.tap._notes.arrived


def test_what_somebody_else_had_wrapped_before_is_put_back(scheduler: Scheduler, directory: Path) -> None:
    def earlier() -> str:
        return "theirs"

    scheduler.schedule = earlier  # type: ignore[method-assign]
    attached = attach(scheduler, Settings(directory=directory))
    assert (scheduler.schedule(), attached.switch.on) == ("theirs", False)
    assert scheduler.schedule is earlier


def test_hooks_that_another_plugin_hangs_on_note_nothing_once_the_instrument_is_off(
    instrument: Instrument, scheduler: Scheduler
) -> None:
    pool = scheduler.kv_cache_manager.block_pool
    ours = pool.free_blocks
    pool.free_blocks = lambda blocks: ours(blocks)
    scheduler.schedule()
    assert not instrument.switch.on
    for _ in range(100):
        pool.free_blocks([pool.blocks[1]])
    assert instrument.tap is not None
    assert not instrument.tap._notes.touched


def test_what_a_hook_cannot_note_switches_the_instrument_off_and_does_not_reach_the_engine(
    instrument: Instrument, scheduler: Scheduler
) -> None:
    scheduler._free_blocks(SimpleNamespace())
    assert not instrument.switch.on
    assert "request_id" in instrument.switch.why


ANOTHER_MANNER: dict[str, Callable[[Scheduler], Any]] = {
    "get_new_blocks": lambda s: [block.block_id for block in s.kv_cache_manager.block_pool.get_new_blocks(count=2)],
    "touch": lambda s: s.kv_cache_manager.block_pool.touch(blocks=iter(s.kv_cache_manager.block_pool.blocks[1:3])),
    "free_blocks": lambda s: s.kv_cache_manager.block_pool.free_blocks(blocks=iter(s.running[0].blocks)),
    "free": lambda s: s.kv_cache_manager.free(request=s.running[0]),
    "add_request": lambda s: s.add_request(request=request("two")),
    "finish_requests": lambda s: len(s.finish_requests(request_ids=["one"], status=None)),
    "update_from_output": lambda s: s.update_from_output("output", computed="computed"),
}


@pytest.mark.parametrize("name", ANOTHER_MANNER)
def test_a_call_in_another_manner_than_this_vllms_reaches_the_engine_all_the_same(
    instrument: Instrument, scheduler: Scheduler, name: str
) -> None:
    """A version may give by name what those before gave by position."""
    states = []
    for engine in (scheduler, Scheduler()):
        pool = engine.kv_cache_manager.block_pool
        engine.running = [SimpleNamespace(request_id="one", blocks=pool.get_new_blocks(2))]
        engine.add_request(request("one"))
        answer = ANOTHER_MANNER[name](engine)
        states.append((answer, [block.ref_cnt for block in pool.blocks], list(engine.requests)))
    assert states[0] == states[1]
    assert instrument.switch.on or "Error" in instrument.switch.why


def test_numbers_beyond_the_ledgers_are_the_largest_it_has(instrument: Instrument, scheduler: Scheduler) -> None:
    endless = request("one")
    endless.max_tokens = 1 << 40
    scheduler.add_request(endless)
    assert instrument.switch.on, instrument.switch.why
    assert reader_of(instrument).sample().slots.max_tokens.tolist() == [(1 << 31) - 1]


def test_who_waits_without_a_slot_is_counted_while_waiting_and_when_it_is_over(
    instrument: Instrument, scheduler: Scheduler
) -> None:
    source = LedgerSource(reader_of(instrument))
    for number in range(3_000):
        scheduler.add_request(request(f"r{number}"))
    assert instrument.await_applied()
    waiting = source.look().requests
    assert waiting is not None
    assert sum((waiting.waiting or {}).values()) == sum((waiting.live or {}).values()) == 3_000
    for number in reversed(range(3_000)):
        scheduler.abort(f"r{number}")
    assert instrument.await_applied()
    seen = source.look()
    assert sum(seen.totals.counters["requests_total"].values()) == 3_000
    assert seen.totals.counters["cancellations_total"]["disconnect",] == 3_000
    assert instrument.switch.on, instrument.switch.why


def test_what_this_vllm_does_not_tell_is_unknown_and_not_0(instrument: Instrument) -> None:
    seen = LedgerSource(reader_of(instrument)).look()
    unknown = {
        "rejections_total",
        "cow_copies_total",
        "preemptions_total",
        "evictions_total",
        "prefix_hit_tokens_total",
    }
    assert not unknown & set(seen.totals.counters)
    assert "allocation" not in seen.totals.histograms
    capabilities = answer(seen, BY_NAME["capability"])
    assert capabilities is not None
    assert {capabilities[name,] for name in unknown} == {0.0}
    assert capabilities["requests_total",] == 1.0


def test_an_error_of_the_engine_passes_through_unchanged(instrument: Instrument, scheduler: Scheduler) -> None:
    with pytest.raises(KeyError, match="nobody"):
        scheduler.finish_requests(["nobody"], None)
    assert instrument.switch.on


def test_a_scheduler_of_another_kind_is_left_alone(directory: Path) -> None:
    stranger = SimpleNamespace(schedule=lambda: "output")
    attached = attach(stranger, Settings(directory=directory))
    assert not attached.switch.on
    assert "has no requests" in attached.switch.why
    assert (stranger.schedule(), list(directory.iterdir())) == ("output", [])


def test_without_a_place_for_a_ledger_the_engine_runs_without_one(scheduler: Scheduler, tmp_path: Path) -> None:
    attached = attach(scheduler, Settings(directory=tmp_path))  # on disk, which was not allowed
    assert (attached.switch.on, attached.ledger) == (False, None)
    assert "NotMemory" in attached.switch.why
    assert scheduler.schedule() == "output"


@pytest.mark.parametrize("place", ["/proc/kvledger", "/dev/null/kvledger", "/sys/kvledger"])
def test_where_nothing_can_be_made_the_engine_runs_without_a_ledger(scheduler: Scheduler, place: str) -> None:
    attached = attach(scheduler, Settings(directory=Path(place)))
    assert (attached.switch.on, attached.ledger, attached.mirror) == (False, None, None)
    assert place in attached.switch.why
    assert scheduler.schedule() == "output"


def test_a_second_engine_of_the_same_name_is_not_mirrored_and_says_so(instrument: Instrument, directory: Path) -> None:
    second = attach(Scheduler(), Settings(directory=directory))
    assert instrument.switch.on
    assert not second.switch.on
    assert "AlreadyWritten" in second.switch.why


def test_nothing_happens_where_no_directory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVLEDGER_DIR", raising=False)
    monkeypatch.setattr("kvledger_vllm.watch_schedulers", lambda settings: pytest.fail("it acted"))
    kvledger_vllm.register()


@pytest.mark.parametrize("number", ["many", "inf", "-inf", "nan", "1e999", "-3", ""])
def test_settings_that_are_no_numbers_count_as_not_given_and_are_warned_of(
    number: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings.from_environment({"KVLEDGER_DIR": "/dev/shm/x", "KVLEDGER_MAX_REQUESTS": number})
    assert settings == Settings(directory=Path("/dev/shm/x"))
    warned = [f"KVLEDGER_MAX_REQUESTS={number!r} is no number of requests and is ignored: use a whole number"]
    assert caplog.messages == (warned if number else [])
