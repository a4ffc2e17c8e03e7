"""One engine on the overview: how full its pool is, who waits for what, what was refused. From a snapshot document."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvledger_dashboards.explorer.views.engines import known_sum

HISTORY_SAMPLES = 180


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBar:
    """A pool in blocks; whatever is not reported is None. Both watermarks are numbers of active blocks.

    `alert_blocks` is where an operator is told; above `admission_blocks` the engine admits nobody.
    """

    capacity_blocks: int | None
    free_blocks: int | None
    cached_blocks: int | None
    active_blocks: int | None
    leaked_blocks: int | None
    headroom_blocks: int | None
    peak_active_blocks: int | None
    seconds_to_exhaustion: float | None
    growth_known: bool
    logical_blocks: float | None
    shared_blocks: float | None
    alert_blocks: float | None
    admission_blocks: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Requests of an engine: live by state, waiting by cause, the oldest wait, refusals since its start by reason."""

    live: Mapping[str, float] | None
    waiting: Mapping[str, float] | None
    oldest_wait_seconds: float | None
    oldest_wait_cause: str | None
    rejections: Mapping[str, float] | None

    @property
    def waiting_total(self) -> float | None:
        """How many wait; None if it is not reported."""
        return None if self.waiting is None else sum(self.waiting.values())


def pool_bar(snapshot: Mapping[str, Any]) -> PoolBar:
    """The pool of a snapshot document."""
    pool: Mapping[str, Any] = snapshot.get("pool") or {}
    groups = snapshot.get("groups") or []
    capacity, ratio = pool.get("capacity_blocks"), pool.get("alert_watermark_ratio")
    kept_free = pool.get("admission_watermark_blocks")
    return PoolBar(
        capacity_blocks=capacity,
        free_blocks=pool.get("free_blocks"),
        cached_blocks=pool.get("cached_blocks"),
        active_blocks=pool.get("active_blocks"),
        leaked_blocks=snapshot.get("leaked_blocks"),
        headroom_blocks=pool.get("headroom_blocks"),
        peak_active_blocks=pool.get("peak_active_blocks"),
        seconds_to_exhaustion=pool.get("seconds_to_exhaustion"),
        growth_known=bool(pool.get("growth_known")),
        logical_blocks=known_sum(group.get("logical_blocks") for group in groups),
        shared_blocks=known_sum(group.get("shared_blocks") for group in groups),
        alert_blocks=None if capacity is None or ratio is None else capacity * ratio,
        admission_blocks=None if capacity is None or kept_free is None else capacity - kept_free,
    )


def demand(snapshot: Mapping[str, Any]) -> Demand:
    """The requests of a snapshot document."""
    requests: Mapping[str, Any] = snapshot.get("requests") or {}
    oldest = max(
        (row for row in requests.get("oldest_wait_seconds") or [] if row["value"] is not None),
        key=lambda row: float(row["value"]),
        default=None,
    )
    return Demand(
        live=_by(requests.get("live"), "state"),
        waiting=_by(requests.get("waiting"), "cause"),
        oldest_wait_seconds=None if oldest is None else oldest["value"],
        oldest_wait_cause=None if oldest is None else oldest["cause"],
        rejections=rejections(snapshot),
    )


def rejections(snapshot: Mapping[str, Any]) -> dict[str, float] | None:
    """Refusals by reason since the engine's start, the most frequent first; None if it does not count them."""
    rows = (snapshot.get("counters") or {}).get("rejections_total")
    if rows is None:
        return None
    counts = {str(row["labels"][0]): float(row["value"]) for row in rows if row["value"]}
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def _by(rows: list[Mapping[str, Any]] | None, label: str) -> dict[str, float] | None:
    """Sums by one label, zeros left out; None stays None."""
    if rows is None:
        return None
    sums: dict[str, float] = {}
    for row in rows:
        if row["value"]:
            sums[str(row[label])] = sums.get(str(row[label]), 0.0) + float(row["value"])
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


class History:
    """What one browser session has seen of one engine, a value per publication; forgets when the engine starts anew."""

    def __init__(self, samples: int = HISTORY_SAMPLES) -> None:
        self._rows: deque[tuple[int, dict[str, float | None]]] = deque(maxlen=samples)
        self._epoch: int | None = None

    def see(self, snapshot: Mapping[str, Any]) -> None:
        """Take in a snapshot; one of a publication that was seen already changes nothing."""
        epoch, seq = snapshot.get("epoch"), snapshot.get("published_seq")
        if epoch != self._epoch:
            self._rows.clear()
            self._epoch = epoch
        if seq is None or (self._rows and self._rows[-1][0] == seq):
            return
        bar, wants = pool_bar(snapshot), demand(snapshot)
        self._rows.append(
            (seq, {"active": bar.active_blocks, "shared": bar.shared_blocks, "waiting": wants.waiting_total})
        )

    def of(self, name: str) -> list[float]:
        """The known values of `active`, `shared` or `waiting`, oldest first."""
        return [value for _, row in self._rows if (value := row[name]) is not None]
