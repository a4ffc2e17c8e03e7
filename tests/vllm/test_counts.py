"""What only shows over time, against vLLM's own outputs, events and tables: cache, latencies, releases, holdings."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from vllm.config import KVEventsConfig

from tests.vllm.mirrored import Mirrored, mirrored
from tests.vllm.tally import Tally, assert_observed

CALLS, LIVE = 400, 20
DEFAULT = {"class": "default"}
both = pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])


@contextmanager
def worked(model: Path, directory: Path, *, asynchronous: bool, seed: int) -> Iterator[tuple[Mirrored, Tally]]:
    """A scheduler after random work, idle again, and what was listened to meanwhile."""
    events = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
    options = {"asynchronous": asynchronous, "max_num_seqs": 8, "kv_events_config": events}
    with mirrored(model, directory, blocks=49, seed=seed, **options) as mirror:
        tally = Tally(mirror)
        tally.late.on = True
        work(mirror, random.Random(seed))
        mirror.check("idle")
        yield mirror, tally


def work(mirror: Mirrored, drawn: random.Random) -> None:
    """Arrivals that share beginnings, in a pool that is too small; some stop, some are aborted, some end late."""
    bare = mirror.bare
    prefixes = [[drawn.randrange(3, 512) for _ in range(150)] for _ in range(3)]
    for number in range(CALLS):
        if drawn.random() < 0.3 and len(mirror.scheduler.requests) < LIVE:
            prompt = drawn.choice(prefixes)[: drawn.randrange(1, 150)]
            prompt += [drawn.randrange(3, 512) for _ in range(drawn.randrange(1, 60))]
            stop = tuple(range(3, 40)) if drawn.random() < 0.3 else ()
            # The server took it in some time before the scheduler hears of it.
            arrival_time = time.time() - drawn.choice((0, 0.01, 0.2, 2.0))
            bare.add(f"r{number}", prompt, max_tokens=drawn.randrange(1, 90), stop=stop, arrival_time=arrival_time)
        elif drawn.random() < 0.05 and mirror.scheduler.requests:
            bare.abort(drawn.choice(list(mirror.scheduler.requests)))
        time.sleep(drawn.choice((0, 0, 0.001, 0.004, 0.02)))  # the model's time
        bare.schedule()
        if bare.full():
            time.sleep(drawn.choice((0, 0.001)))
            bare.update()
    while any(not request.is_finished() for request in mirror.scheduler.requests.values()):
        bare.step()
    for _ in range(8):  # what ended late gives its blocks back a few steps later
        bare.step()
    bare.drain()


@both
def test_prefix_hits_evictions_latencies_and_releases_are_those_of_vllms_own_outputs_and_events(
    tiny_model: Path, ledger_directory: Path, asynchronous: bool
) -> None:
    with worked(tiny_model, ledger_directory, asynchronous=asynchronous, seed=31) as (mirror, tally):
        stats = mirror.reader.sample().stats
        assert stats.counter("evictions_total") == tally.evicted > 50
        assert stats.counter("prefix_queried_tokens_total") == tally.queried
        assert stats.counter("prefix_hit_tokens_total") == tally.hit > 1000
        assert_observed(stats.histogram("time_to_first_token", **DEFAULT), tally.firsts, "TTFT")
        assert_observed(stats.histogram("inter_token_latency", **DEFAULT), tally.gaps, "ITL")
        assert set(tally.durations) == {"stop", "length", "cancelled"}
        for reason, seconds in tally.durations.items():
            assert_observed(stats.histogram("request_duration", finish_reason=reason), seconds, f"E2E {reason}")
        assert set(tally.releases) == {"finish", "disconnect"}
        for cause, seconds in tally.releases.items():
            assert max(seconds) > 0.005, "none was late"
            assert_observed(stats.histogram("release", cause=cause), seconds, f"release {cause}")


@both
def test_each_requests_peak_hits_and_block_seconds_are_what_its_own_tables_add_up_to(
    tiny_model: Path, ledger_directory: Path, asynchronous: bool
) -> None:
    with worked(tiny_model, ledger_directory, asynchronous=asynchronous, seed=32) as (mirror, tally):
        window = mirror.reader.summaries(0)
        records = window.records
        assert (window.lost, len(records)) == (0, sum(map(len, tally.durations.values())))
        names = records["id_hash"].tolist()
        assert dict(zip(names, records["peak_blocks"].tolist(), strict=True)) == tally.peaks
        seconds = dict(zip(names, records["block_seconds"].tolist(), strict=True))
        assert seconds == pytest.approx({name: tally.block_seconds[name] for name in names}, rel=1e-6, abs=1e-9)
        hits = dict(zip(names, records["hit_tokens"].tolist(), strict=True))
        assert {name: hits[name] for name in tally.cached_tokens} == tally.cached_tokens
        by_tenant = mirror.reader.sample().stats.tenant_counter("block_seconds_total") or {}
        assert sum(by_tenant.values()) == pytest.approx(tally.pool_block_seconds, rel=1e-3)
        assert min(tally.shared, tally.preempted_holders, max(hits.values())) > 0, "too tame"


def test_a_request_that_is_not_looked_up_in_the_prefix_cache_is_not_counted_as_one_that_found_nothing(
    tiny_model: Path, ledger_directory: Path
) -> None:
    """One that wants the probabilities of its prompt; and all of an engine without a prefix cache."""

    def looked_up(caching: bool, **sampling: Any) -> float | None:
        options = {"seed": 33, "enable_prefix_caching": caching}
        with mirrored(tiny_model, ledger_directory, blocks=65, **options) as mirror:
            tally = Tally(mirror)
            for number in range(3):
                mirror.bare.add(f"r{number}", [5] * 60, max_tokens=3, sampling=sampling if number == 1 else {})
                for _ in range(6):
                    mirror.bare.step()
            mirror.bare.drain()
            mirror.scheduler.make_stats()
            counter = mirror.reader.sample().stats.counter
            assert counter("prefix_queried_tokens_total") == tally.queried
            assert counter("prefix_hit_tokens_total") == tally.hit
            return counter("prefix_queried_tokens_total")

    assert looked_up(True) == 180
    assert looked_up(True, prompt_logprobs=1) == 120
    assert looked_up(False) == 0
