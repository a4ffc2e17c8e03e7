"""What vLLM's own outputs, statistics and tables say over a whole run of a bare scheduler; none of the instrument's.

Histograms are compared with lists of times: equally many, and no time more than one bucket away.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import numpy as np

from kvledger.statsview import HistogramValue
from tests.vllm.debug_hook import LateReleases
from tests.vllm.mirrored import Mirrored
from tests.vllm.truth import key

_ENDS = {"stop": "stop", "length": "length"}
_SLACK_SECONDS = 0.002
"""How much later than vLLM's outputs a publication may say the same, on average."""


class Tally:
    """Listens to a scheduler that is mirrored already. Times are CLOCK_MONOTONIC seconds."""

    def __init__(self, mirror: Mirrored) -> None:
        self._mirror, self._scheduler = mirror, mirror.scheduler
        self.late = LateReleases(mirror.scheduler)
        self.evicted = self.queried = self.hit = 0
        self.cached_tokens: dict[int, int] = {}
        """By key of the request: prompt tokens from the prefix cache, by its own prefill statistics."""
        self.arrived: dict[str, float] = {}
        self.firsts: list[float] = []
        self.gaps: list[float] = []
        self.durations: dict[str, list[float]] = defaultdict(list)
        self.releases: dict[str, list[float]] = defaultdict(list)
        self.peaks: dict[int, int] = defaultdict(int)
        self.block_seconds: dict[int, float] = defaultdict(float)
        self.pool_block_seconds = 0.0
        self.preempted_holders = self.shared = 0
        self._last: dict[str, float] = {}
        self._told: dict[str, tuple[str, float]] = {}
        self._asked: float | None = None
        self._held: dict[int, float] = {}
        self._active = 0
        self._since_ns = self._began_ns = 0
        for name in ("add_request", "update_from_output", "finish_requests", "_free_request", "_free_blocks"):
            setattr(mirror.scheduler, name, getattr(self, f"_{name.strip('_')}")(getattr(mirror.scheduler, name)))
        self._listen_to_the_cache()
        self._look_at_every_publication()

    # -- outputs --------------------------------------------------------------------------------------------------

    def _add_request(self, original: Any) -> Any:
        def add_request(request: Any) -> None:
            ago = time.time() - request.arrival_time
            self.arrived[request.request_id] = time.monotonic() - ago
            original(request)

        return add_request

    def _update_from_output(self, original: Any) -> Any:
        def update_from_output(*args: Any) -> Any:
            answer = original(*args)
            for of_client in answer.values():
                for output in of_client.outputs:
                    self._take(output, of_client.timestamp)
            return answer

        return update_from_output

    def _take(self, output: Any, now: float) -> None:
        name = output.request_id
        if output.prefill_stats is not None:
            self.cached_tokens[key(name)] = output.prefill_stats.num_local_cached_tokens
        if output.new_token_ids:
            if name in self._last:
                self.gaps += [(now - self._last[name]) / len(output.new_token_ids)] * len(output.new_token_ids)
            else:
                self.firsts.append(now - self.arrived[name])
            self._last[name] = now
        if output.finish_reason is not None:
            self.durations[_ENDS[str(output.finish_reason)]].append(now - self.arrived[name])

    def _finish_requests(self, original: Any) -> Any:
        def finish_requests(*args: Any) -> Any:
            self._asked = time.monotonic()
            ended = original(*args)
            self._asked = None
            self.durations["cancelled"] += [time.monotonic() - self.arrived[r.request_id] for r in ended]
            return ended

        return finish_requests

    def _free_request(self, original: Any) -> Any:
        def free_request(request: Any, *args: Any, **kwargs: Any) -> Any:
            cause = "finish" if self._asked is None else "disconnect"
            self._told[request.request_id] = cause, self._asked or time.monotonic()
            return original(request, *args, **kwargs)

        return free_request

    def _free_blocks(self, original: Any) -> Any:
        def free_blocks(request: Any) -> None:
            original(request)
            cause, told = self._told.pop(request.request_id)
            self.releases[cause].append(time.monotonic() - told)

        return free_blocks

    # -- cache ----------------------------------------------------------------------------------------------------

    def _listen_to_the_cache(self) -> None:
        manager = self._scheduler.kv_cache_manager
        take_events, make_stats = manager.take_events, manager.make_prefix_cache_stats

        def taking_events() -> Any:
            events = take_events()
            self.evicted += sum(type(event).__name__ == "BlockRemoved" for event in events)
            return events

        def making_stats() -> Any:
            stats = make_stats()
            if stats is not None:
                self.queried, self.hit = self.queried + stats.queries, self.hit + stats.hits
            return stats

        manager.take_events, manager.make_prefix_cache_stats = taking_events, making_stats

    # -- tables, over the ledger's clock --------------------------------------------------------------------------

    def _look_at_every_publication(self) -> None:
        tap = self._mirror.instrument.tap
        assert tap is not None
        publish = tap.publish

        def publishing(*args: Any, **kwargs: Any) -> None:
            publish(*args, **kwargs)
            self._began_ns = tap.sent_ns
            self._integrate()

        tap.publish = publishing  # type: ignore[method-assign]
        self._since_ns = tap.sent_ns

    def _integrate(self) -> None:
        """What was held since the last publication was held until this one began; what is held now, from then on."""
        elapsed, self._since_ns = (self._began_ns - self._since_ns) / 1e9, self._began_ns
        for request, share in self._held.items():
            self.block_seconds[request] += share * elapsed
        self.pool_block_seconds += self._active * elapsed
        groups = self._scheduler.kv_cache_manager.coordinator.single_type_managers
        self._held = {}
        for request_id, request in self._scheduler.requests.items():
            table = [b for g in groups for b in g.req_to_blocks.get(request_id, ()) if not b.is_null]
            self._held[key(request_id)] = sum(1 / block.ref_cnt for block in table)
            self.peaks[key(request_id)] = max(self.peaks[key(request_id)], len(table))
            self.shared += sum(block.ref_cnt > 2 for block in table)
            self.preempted_holders += bool(request.num_preemptions and table)
        self._active = sum(block.ref_cnt > 0 for block in self._scheduler.kv_cache_manager.block_pool.blocks[1:])


def assert_observed(histogram: HistogramValue | None, values: list[float], what: str) -> None:
    """A histogram has as many observations, none of them more than a bucket away, and the same sum."""
    assert histogram is not None, what
    edges = np.searchsorted(histogram.bounds, values)
    own, theirs = np.bincount(edges, minlength=len(histogram.buckets)).cumsum(), histogram.buckets.cumsum()
    assert theirs[-1] == len(values), what
    few = len(values) // 50  # between which and its publication this machine had other work
    assert (own[:-1] <= theirs[1:] + few).all(), (what, own, theirs)
    assert (theirs[:-1] <= own[1:] + few).all(), (what, own, theirs)
    slack = 0.02 * sum(values) + _SLACK_SECONDS * len(values)
    assert abs(histogram.sum - sum(values)) <= slack, (what, histogram.sum, sum(values))
