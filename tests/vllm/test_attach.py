"""How the plugin gets into vLLM's own Scheduler: once, however often it is registered, and one ledger a rank."""

from __future__ import annotations

import ast
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import core

import kvledger_vllm
from kvledger.reader import Reader
from kvledger.source import MemorySource
from kvledger_vllm.attach import Instrument, attach, watch_schedulers
from kvledger_vllm.settings import Settings
from tests.vllm.bare import BareScheduler
from tests.vllm.toggle import take_out
from tests.vllm.truth import differences, ledger_counts, truth_of


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for ledgers; vLLM's class is as it was afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="kvledger-attach-", dir="/dev/shm"))
    original = Scheduler.__init__
    monkeypatch.setenv("KVLEDGER_DIR", str(directory))
    monkeypatch.setenv("KVLEDGER_ENGINE", "chat")
    yield directory
    Scheduler.__init__ = original
    shutil.rmtree(directory)


def instrument_of(bare: BareScheduler) -> Instrument:
    instrument: Any = bare.scheduler.kvledger
    assert isinstance(instrument, Instrument)
    assert instrument.switch.on, instrument.switch.why
    return instrument


def stop(bare: BareScheduler) -> None:
    stopping = instrument_of(bare).stop
    assert stopping is not None
    stopping()


def steps(bare: BareScheduler, first_token: int) -> None:
    bare.add(f"r{first_token}", [first_token] * 40, max_tokens=9)
    for _ in range(4):
        bare.step()


def test_a_plugin_that_is_registered_again_and_again_attaches_once(watched: Path, tiny_model: Path) -> None:
    kvledger_vllm.register()
    patched = Scheduler.__init__
    kvledger_vllm.register()
    watch_schedulers(Settings(directory=watched))
    watch_schedulers(Settings(directory=watched, engine="other"))
    assert Scheduler.__init__ is patched
    bare = BareScheduler(tiny_model, blocks=33)
    ledger = instrument_of(bare).ledger
    assert ledger is not None
    assert instrument_of(bare).await_applied()
    tap = instrument_of(bare).tap
    assert tap is not None
    sent = tap.sent
    steps(bare, 5)
    # Each entry point once: an arrival and four schedules with the outputs between them, and the one behind the last.
    assert instrument_of(bare).await_applied()
    assert tap.sent - sent == 1 + 4 + 1
    assert Reader.over(MemorySource(ledger.image)).sample().stats.whole("steps") == 3
    assert [path.name for path in watched.glob("*.kvledger")] == ["chat.0.00000001.kvledger"]
    stop(bare)


HOOKED = {
    "schedule", "update_from_output", "add_request", "finish_requests", "reset_prefix_cache", "set_pause_state",
    "shutdown",
}  # fmt: skip
CHANGE_NOTHING = {
    "get_ec_connector", "get_grammar_bitmask", "get_kv_cache_usage", "get_kv_connector",
    "get_kv_event_publisher_config", "get_num_unfinished_requests", "get_request_counts", "has_requests",
    "has_unfinished_requests", "make_stats",
}  # fmt: skip
CHANGE_NOTHING_OF_THE_LEDGERS = {"reset_encoder_cache", "update_draft_token_ids", "update_draft_token_ids_in_output"}
"""An encoder's outputs, and guesses, which are in `test_further`."""


def test_every_method_that_vllms_engine_core_calls_is_published_or_changes_nothing_that_a_ledger_shows(
    watched: Path, tiny_model: Path
) -> None:
    calls = {
        node.func.attr
        for node in ast.walk(ast.parse(Path(core.__file__).read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and of_the_scheduler(node.func.value)
    }
    assert calls == HOOKED | CHANGE_NOTHING | CHANGE_NOTHING_OF_THE_LEDGERS
    kvledger_vllm.register()
    bare = BareScheduler(tiny_model, blocks=33)
    assert instrument_of(bare).switch.on
    assert vars(bare.scheduler).keys() >= HOOKED
    stop(bare)


def of_the_scheduler(value: ast.expr) -> bool:
    """Whether this is `scheduler`, or an attribute of that name."""
    return getattr(value, "id", getattr(value, "attr", None)) == "scheduler"


def test_two_ranks_in_one_process_have_a_ledger_each_that_tells_its_own(watched: Path, tiny_model: Path) -> None:
    kvledger_vllm.register()
    ranks = [BareScheduler(tiny_model, blocks=33 + rank, rank=rank) for rank in (0, 1)]
    assert sorted(path.name for path in watched.glob("*.kvledger")) == [
        "chat.0.00000001.kvledger",
        "chat.1.00000001.kvledger",
    ]
    for number, bare in enumerate((ranks[0], ranks[1], ranks[1])):
        steps(bare, 5 + number)
    for rank, bare in enumerate(ranks):
        ledger = instrument_of(bare).ledger
        assert ledger is not None
        assert instrument_of(bare).await_applied()
        reader = Reader.over(MemorySource(ledger.image))
        assert differences(truth_of(bare.scheduler), ledger_counts(reader)) == {}
        limits = reader.head.limits
        assert (limits.engine, limits.rank, limits.capacity_blocks) == ("chat", rank, 32 + rank)
        assert len(reader.sample().slots) == 1 + rank
        stop(bare)


def test_the_ledger_of_a_pool_of_100_000_blocks_takes_at_most_32_mb(tiny_model: Path, ledger_directory: Path) -> None:
    bare = BareScheduler(tiny_model, blocks=100_001, max_num_seqs=256, max_num_batched_tokens=8192)
    instrument = attach(bare.scheduler, Settings(directory=ledger_directory, engine="big"))
    assert instrument.ledger is not None, instrument.switch.why
    assert instrument.ledger.path is not None
    assert 0 < instrument.ledger.path.stat().st_size <= 32_000_000
    assert take_out(bare.scheduler) == ""
