"""One scrape as numbers in the project's words, rank by rank. Pure; what the page does not say is None, never 0."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvledger_agent.observation import HistogramView
from kvledger_agent.scrape.extras import with_documents
from kvledger_agent.scrape.page import Page
from kvledger_agent.scrape.profile import EngineProfile
from kvledger_agent.scrape.signals import RankPage, missing_families, ranks_of, reported_signals

Counts = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReading:
    """One rank of one engine at one instant; every field None where it is not known.

    Blocks are of the pool the engine tells of. `available_blocks` are free or kept for reuse, where the engine does not
    tell the two apart. `capacity_tokens` and `active_tokens` are for engines that count no blocks. `elsewhere` are
    requests in queues beside the waiting one, `transfers` those whose KV moves (by stage in `fetch_stages`), `deferred`
    those that wait for something that is no capacity, `deferred_releases` ended ones that still hold blocks. `unsure`
    are signals of which the page has some parts and not all.
    """

    engine: str
    version_range: str | None
    rank: int
    model: str | None
    monotonic_ns: int
    wall_ns: int
    capacity_blocks: int | None = None
    block_size_tokens: int | None = None
    block_bytes: int | None = None
    active_blocks: int | None = None
    cached_blocks: int | None = None
    free_blocks: int | None = None
    available_blocks: int | None = None
    capacity_tokens: int | None = None
    active_tokens: int | None = None
    usage_ratio: float | None = None
    usage_includes_evictable: bool | None = None
    running: int | None = None
    waiting: int | None = None
    waiting_by_reason: Counts | None = None
    deferred: int | None = None
    elsewhere: int | None = None
    transfers: int | None = None
    fetch_stages: Counts | None = None
    deferred_releases: int | None = None
    held_by_sessions_tokens: int | None = None
    preemptions_total: float | None = None
    evicted_tokens_total: float | None = None
    prefix_queried_tokens_total: float | None = None
    prefix_hit_tokens_total: float | None = None
    prompt_tokens_total: float | None = None
    transferred_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    finished_total: Mapping[str, float] | None = None
    rejections_total: Mapping[str, float] | None = None
    iterations_total: float | None = None
    ttft_seconds: HistogramView | None = None
    itl_seconds: HistogramView | None = None
    e2e_seconds: HistogramView | None = None
    queue_seconds: HistogramView | None = None
    missing_families: tuple[str, ...] = ()
    reported: frozenset[str] = field(default_factory=frozenset)
    transfers_possible: bool = False
    unsure: frozenset[str] = frozenset()
    damaged_lines: int = 0

    @property
    def held_by_sessions_blocks(self) -> int | None:
        """Blocks that sessions hold on purpose; None where it is not known."""
        if self.held_by_sessions_tokens is None or not self.block_size_tokens:
            return None
        return -(-self.held_by_sessions_tokens // self.block_size_tokens)


_WHOLE = ("running", "waiting", "elsewhere", "transfers", "deferred_releases", "held_by_sessions_tokens")
_TOTALS = (
    "preemptions_total",
    "evicted_tokens_total",
    "prefix_queried_tokens_total",
    "prefix_hit_tokens_total",
    "prompt_tokens_total",
    "transferred_tokens_total",
    "generation_tokens_total",
    "iterations_total",
)
_BY_WORD = ("finished_total", "rejections_total")
_HISTOGRAMS = ("ttft_seconds", "itl_seconds", "e2e_seconds", "queue_seconds")


def read(
    profile: EngineProfile,
    version: str | None,
    page: Page,
    documents: Mapping[str, Any] | None = None,
    *,
    monotonic_ns: int,
    wall_ns: int,
) -> tuple[EngineReading, ...]:
    """Everything a page and its further documents say, one reading per rank, in order of rank.

    `documents` are answers to `profile.documents` by path, as parsed JSON; one that failed is not in it.
    """
    page = with_documents(page, documents or {})
    missing, reported = missing_families(profile, version, page), reported_signals(profile, version, page)
    possible = any(name.startswith(profile.traces_of_transfers) for name in page.families)
    common: dict[str, Any] = {
        "engine": profile.engine,
        "version_range": version,
        "monotonic_ns": monotonic_ns,
        "wall_ns": wall_ns,
        "usage_includes_evictable": profile.semantics.usage_includes_evictable,
        "missing_families": missing,
        "reported": reported,
        "transfers_possible": bool(profile.traces_of_transfers) and possible,
        "damaged_lines": page.damaged_lines,
    }
    readings = []
    ranks = ranks_of(profile, page)
    for rank in ranks:
        known = RankPage(profile, version, page, ranks, rank)
        readings.append(EngineReading(rank=rank, model=known.model(), **common, **_values(known)))
    return tuple(readings)


def _values(known: RankPage) -> dict[str, Any]:
    queues = {name: known.number(name) for name in _WHOLE}
    values: dict[str, Any] = {name: whole(value) for name, value in queues.items()}
    values["unsure"] = frozenset(name for name, value in queues.items() if value is not None and math.isnan(value))
    values |= {name: count(known.number(name)) for name in _TOTALS}
    values |= {name: known.by_word(name) for name in _BY_WORD}
    values |= {name: known.histogram(name) for name in _HISTOGRAMS}
    for name in ("waiting_by_reason", "fetch_stages"):
        counts = known.by_word(name)
        values[name] = None if counts is None else {key: int(value) for key, value in counts.items()}
    stages = values["fetch_stages"]
    if stages is not None and stages.keys() >= set(known.profile.words_of("fetch_stages")):
        values["transfers"] = sum(stages.values())
    deferred = known.number("deferred")
    values["deferred"] = (
        whole(deferred) if deferred is not None else (values["waiting_by_reason"] or {}).get("deferred")
    )
    return values | _pool(known)


def _pool(known: RankPage) -> dict[str, Any]:
    size = positive(known.number("block_size_tokens")) or positive(known.number("config_block_size_tokens"))
    tokens = {name: whole(known.number(name)) for name in ("capacity_tokens", "active_tokens")}
    blocks = {
        name: blocks_of(known.number(name), known.unit(name), size)
        for name in ("capacity_blocks", "active_blocks", "cached_blocks", "free_blocks", "available_blocks")
    }
    capacity = positive(blocks["capacity_blocks"]) or positive(known.number("config_capacity_blocks"))
    if capacity is None and size and tokens["capacity_tokens"] is not None:
        capacity = positive(tokens["capacity_tokens"] // size)
    blocks["capacity_blocks"] = capacity
    usage = known.number("usage_ratio")
    exact = known.profile.semantics.usage_is_exact
    if blocks["active_blocks"] is None and exact and usage is not None and capacity and 0 <= usage <= 1:
        blocks["active_blocks"] = round(usage * capacity)
    if usage is None:
        usage = _share(blocks["active_blocks"], capacity)
    if usage is None:
        usage = _share(tokens["active_tokens"], tokens["capacity_tokens"])
    pool_bytes, pages = known.number("pool_bytes"), capacity
    bytes_each = int(pool_bytes // pages) if pool_bytes and pages else None
    return {**blocks, **tokens, "block_size_tokens": size, "usage_ratio": usage, "block_bytes": bytes_each}


def blocks_of(value: float | None, unit: str, block_size_tokens: int | None) -> int | None:
    """A count of blocks, from tokens where the engine counts those: a block begun is a block. None where unknown."""
    if value is None or not math.isfinite(value):
        return None
    if unit != "tokens":
        return int(value)
    return None if not block_size_tokens else math.ceil(value / block_size_tokens)


def whole(value: float | None) -> int | None:
    """A count that cannot be below 0; None for what is no such number."""
    return int(value) if value is not None and math.isfinite(value) and value >= 0 else None


def count(value: float | None) -> float | None:
    """A counter's value; None for what no counter can be."""
    return value if value is not None and math.isfinite(value) and value >= 0 else None


def positive(value: float | None) -> int | None:
    """A size; None for what is none."""
    return int(value) if value is not None and math.isfinite(value) and value >= 1 else None


def _share(part: int | None, whole_: int | None) -> float | None:
    return None if part is None or not whole_ else part / whole_
