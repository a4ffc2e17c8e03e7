"""Moments: what one observation contributes to a verdict, and the window of the last ones. Computes no signal."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvledger.clock import NS_PER_SECOND
from kvledger.words import RequestState
from kvledger_agent.observation import LEDGER, Observation, Series
from kvledger_agent.sums import by_first_label
from kvledger_agent.verdict.holders import Holders
from kvledger_agent.verdict.queue_head import QueueHead

_WAITING = (RequestState.WAITING.word, RequestState.PREEMPTED.word, RequestState.SWAPPED.word)
_COUNTERS = (
    "requests_total",
    "preemptions_total",
    "recomputed_tokens_total",
    "prompt_tokens_total",
    "prefix_hit_tokens_total",
    "prefix_queried_tokens_total",
    "generation_tokens_total",
    "engine_steps_total",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Insight:
    """What only a ledger shows of an instant, beside its observation: limits of a step, holders, the queue's head."""

    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    holders: Holders | None
    head: QueueHead | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One instant of one engine. Gauges are of the instant, `usage_ratio` without blocks that are kept for reuse;
    `totals`, `refused` and `arrived_by_tenant` (those that have ended or were refused) are counted since ever; None and
    a missing key are unknown.
    """

    clock_ns: int
    idle: bool | None = None
    capacity_blocks: int | None = None
    active_blocks: int | None = None
    available_blocks: int | None = None
    usage_ratio: float | None = None
    running: float | None = None
    waiting: float | None = None
    deferred: float | None = None
    waiting_by_cause: Mapping[str, float] | None = None
    refused: Mapping[str, float] | None = None
    arrived_by_tenant: Mapping[str, float] | None = None
    totals: Mapping[str, float] = field(default_factory=dict)
    insight: Insight | None = None

    @property
    def used(self) -> float | None:
        """The part of the pool that is held; None where it is not known."""
        if self.active_blocks is not None and self.capacity_blocks:
            return self.active_blocks / self.capacity_blocks
        return self.usage_ratio

    @property
    def room(self) -> float | None:
        """The part of the pool that is free or kept for reuse."""
        if self.available_blocks is not None and self.capacity_blocks:
            return self.available_blocks / self.capacity_blocks
        return None if self.usage_ratio is None else 1.0 - self.usage_ratio


def moment_of(observation: Observation, insight: Insight | None = None) -> Moment | None:
    """The moment of an observation; None where it has no clock."""
    if observation.clock is None:
        return None
    pool, requests = observation.pool, observation.requests
    live = None if requests is None else requests.live
    return Moment(
        clock_ns=observation.clock.now_ns,
        idle=observation.liveness.idle,
        capacity_blocks=None if pool is None else pool.capacity_blocks,
        active_blocks=None if pool is None else pool.active_blocks,
        available_blocks=_available(observation),
        usage_ratio=None if pool is None or pool.usage_includes_evictable is not False else pool.usage_ratio,
        running=_of_states(live, (RequestState.RUNNING.word,)),
        waiting=_of_states(live, _WAITING),
        deferred=None if requests is None else (requests.waiting_by_reason or {}).get("deferred"),
        waiting_by_cause=None if requests is None or requests.waiting is None else by_first_label(requests.waiting),
        refused=_refused(observation),
        arrived_by_tenant=_arrived_by_tenant(observation),
        totals=_totals(observation),
        insight=insight,
    )


class MomentWindow:
    """The moments of the last `window_seconds`, and one before them so that the window is covered.

    A clock that goes back begins the window anew: it belongs to another start of the engine.
    """

    def __init__(self, window_seconds: float) -> None:
        self._window_ns = round(window_seconds * NS_PER_SECOND)
        self._moments: deque[Moment] = deque()

    def add(self, moment: Moment) -> tuple[Moment, ...]:
        """Take in a moment; a second one of the same instant replaces the first. The window, oldest first."""
        moments = self._moments
        if moments and moment.clock_ns < moments[-1].clock_ns:
            moments.clear()
        if moments and moment.clock_ns == moments[-1].clock_ns:
            moments.pop()
        moments.append(moment)
        while len(moments) > 2 and moments[1].clock_ns <= moment.clock_ns - self._window_ns:
            moments.popleft()
        return tuple(moments)


def _available(observation: Observation) -> int | None:
    pool = observation.pool
    if pool is None:
        return None
    if pool.available_blocks is not None:
        return pool.available_blocks
    if pool.free_blocks is not None and pool.cached_blocks is not None:
        return pool.free_blocks + pool.cached_blocks
    held = observation.source == LEDGER or pool.usage_includes_evictable is False
    if held and pool.capacity_blocks is not None and pool.active_blocks is not None:
        return pool.capacity_blocks - pool.active_blocks
    return None


def _of_states(live: Series | None, states: tuple[str, ...]) -> float | None:
    """Requests in some states; None where none of the states is reported."""
    if live is None:
        return None
    known = [number for labels, number in live.items() if labels[0] in states]
    return sum(known) if known else None


def _refused(observation: Observation) -> dict[str, float] | None:
    series = observation.totals.counters.get("rejections_total")
    return None if series is None else by_first_label(series)


def _arrived_by_tenant(observation: Observation) -> dict[str, float] | None:
    """Requests that have ended or were refused, by tenant; None where either is not told by tenant."""
    ended, refused = (observation.totals.counters.get(name) for name in ("requests_total", "tenant_rejections_total"))
    if ended is None or refused is None:
        return None
    sums: dict[str, float] = {}
    for labels, value in (*ended.items(), *refused.items()):
        sums[labels[-1]] = sums.get(labels[-1], 0.0) + value
    return sums


def _totals(observation: Observation) -> dict[str, float]:
    """Sums over all labels of what is counted, and of histograms what they add up to, by family and label."""
    counters, histograms = observation.totals.counters, observation.totals.histograms
    totals = {name: sum(counters[name].values()) for name in _COUNTERS if name in counters}
    for labels, view in histograms.get("step", {}).items():
        totals[f"step_{labels[0]}_seconds"] = view.sum
    if "allocation" in histograms:
        totals["allocation_seconds"] = sum(view.sum for view in histograms["allocation"].values())
    return totals
