"""Taking the instrument out of a running scheduler leaves nothing of it, and a new one mirrors it from there."""

from __future__ import annotations

from pathlib import Path

from kvledger.reader import Reader
from kvledger.source import MemorySource
from kvledger_vllm.attach import attach
from kvledger_vllm.settings import Settings
from tests.vllm.bare import BareScheduler
from tests.vllm.toggle import take_out, traces
from tests.vllm.truth import differences, ledger_counts, truth_of


def work(bare: BareScheduler, name: str) -> None:
    """One request from its arrival to its end."""
    bare.add(name, [3 + number % 500 for number in range(40)], max_tokens=8)
    while bare.scheduler.has_requests():
        bare.step()
    bare.drain()


def published(path: Path) -> int:
    with Reader.open(path) as reader:
        return reader.sample().published_seq


def test_an_instrument_that_is_taken_out_leaves_nothing_and_the_next_one_mirrors_what_is_there(
    tiny_model: Path, ledger_directory: Path
) -> None:
    bare = BareScheduler(tiny_model, blocks=65, asynchronous=False)
    settings = Settings(directory=ledger_directory, engine="toggle")
    assert traces(bare.scheduler) == []
    first = attach(bare.scheduler, settings)
    assert first.ledger is not None, first.switch.why
    path = first.ledger.path
    assert path is not None
    assert {"scheduler.kvledger", "scheduler.schedule"} < set(traces(bare.scheduler))
    assert "scheduler.kv_cache_manager.block_pool.get_new_blocks" in traces(bare.scheduler)
    work(bare, "while-it-is-in")

    assert take_out(bare.scheduler) == ""
    assert traces(bare.scheduler) == []
    seq = published(path)
    work(bare, "while-it-is-out")
    assert published(path) == seq

    second = attach(bare.scheduler, settings)
    assert second.ledger is not None, second.switch.why
    assert second.ledger.path not in (None, path)
    work(bare, "while-the-next-one-is-in")
    assert second.await_applied()
    with Reader.over(MemorySource(second.ledger.image)) as reader:
        assert differences(truth_of(bare.scheduler), ledger_counts(reader)) == {}
        assert reader.sample().published_seq > 1
    assert take_out(bare.scheduler) == ""
