"""The JSON documents of the API and of `--json`: one shape for the same thing wherever it is printed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvledger.audit import Audit
from kvledger.clock import NS_PER_SECOND
from kvledger.pins import pin_word
from kvledger.snapshot import Sample
from kvledger_agent.fleet import Fleet, SourceHealth, unreadable
from kvledger_agent.observation import Observation, PoolView, RequestsView, VerdictView
from kvledger_agent.plain import plain, series_rows
from kvledger_agent.request_rows import request_rows


def engines_document(fleet: Fleet, now_ns: int) -> dict[str, Any]:
    """Every source: the engines that could be read, with their verdict, and the ledgers that could not, with why."""
    known = {observation.identity.key: observation for observation in fleet.observations}
    return {
        "sample_age_seconds": fleet.age_seconds(now_ns),
        "engines": [_engine_line(source, known.get(source.source)) for source in fleet.sources],
    }


def _engine_line(source: SourceHealth, observation: Observation | None) -> dict[str, Any]:
    line: dict[str, Any] = {"id": source.source, "path": source.path, "status": source.status, "error": source.error}
    if observation is None:
        return line | {"engine": None}
    return line | {
        **plain(observation.identity),
        "source": observation.source,
        "up": observation.liveness.up,
        "idle": observation.liveness.idle,
        "verdict": verdict_document(observation.verdict),
        "findings": len(observation.findings) if observation.findings is not None else None,
    }


def snapshot_document(observation: Observation) -> dict[str, Any]:
    """Everything known of one engine now, in numbers; unknown is null."""
    pool = observation.pool
    return {
        "id": observation.identity.key,
        **plain(observation.identity),
        "source": observation.source,
        "liveness": plain(observation.liveness),
        "clock": plain(observation.clock),
        "published_seq": observation.published_seq,
        "pool": {"name": observation.identity.pool} | (_pool(pool) if pool else {}),
        "leaked_blocks": observation.leaked_blocks,
        "groups": plain(observation.groups),
        "sharing": None if observation.sharing is None else plain(observation.sharing.total),
        "requests": None if observation.requests is None else _requests(observation.requests),
        "counters": {
            name: [{"labels": list(labels), "value": plain(value)} for labels, value in series.items()]
            for name, series in observation.totals.counters.items()
        },
        **findings_document(observation),
        "notes": plain(observation.notes),
        "verdict": verdict_document(observation.verdict),
    }


def unreadable_rows(health: Iterable[SourceHealth]) -> list[dict[str, Any]]:
    """The ledgers among some sources that could not be read, and why."""
    return [
        {"id": source.source, "path": source.path, "status": source.status, "error": source.error}
        for source in unreadable(health)
    ]


def verdict_document(view: VerdictView | None) -> dict[str, Any] | None:
    """A verdict, and the shares of request time it rests on: null where requests are not seen one by one."""
    if view is None:
        return None
    time = view.request_time
    return {
        "verdict": view.verdict.word,
        "reason": view.reason.word,
        "action": view.action.word,
        "evidence": view.evidence,
        "to_do": view.to_do,
        "missing": list(view.missing),
        "window_seconds": view.window_seconds,
        "shares": None if time is None else plain(time.shares),
        "requests": None if time is None else time.requests,
    }


def findings_document(observation: Observation) -> dict[str, Any]:
    """The open findings and the invariants; null where nothing audits the engine."""
    return {
        "judged": plain(observation.judged),
        "findings": plain(observation.findings),
        "invariant_violations": plain(observation.violations),
        "undecided": observation.undecided,
        "in_doubt": observation.in_doubt,
        "grace_seconds": observation.grace_seconds,
    }


def requests_document(sample: Sample, audit: Audit) -> dict[str, Any]:
    """Every live request and every pin: who holds what. `left_out` requests were being changed and have no good row."""
    return {
        "published_seq": sample.published_seq,
        "left_out": sample.left_out,
        "requests": plain(request_rows(sample, audit)),
        "pins": pin_rows(sample),
    }


def pin_rows(sample: Sample) -> list[dict[str, Any]]:
    """Every pin: which block, what kind, by whom, since when, and what is left of its lease (null: it has no end)."""
    pins = sample.pins
    columns = (pins.block, pins.kind, pins.holder, pins.since_ns, pins.lease_ns)
    return [
        {
            "block": block,
            "kind": pin_word(kind),
            "holder": holder,
            "age_seconds": (age := max(0.0, (sample.now_ns - since) / NS_PER_SECOND)),
            "lease_left_seconds": lease / NS_PER_SECOND - age if lease > 0 else None,
        }
        for block, kind, holder, since, lease in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _pool(pool: PoolView) -> dict[str, Any]:
    known: dict[str, Any] = plain(pool)
    return known | {"headroom_blocks": pool.headroom_blocks}


def _requests(view: RequestsView) -> dict[str, Any]:
    return {
        "live": series_rows(view.live, ("state", "class")),
        "waiting": series_rows(view.waiting, ("cause", "class")),
        "never_fit": view.never_fit,
        "oldest_wait_seconds": series_rows(view.oldest_wait_seconds, ("cause", "tenant")),
        "oldest_finishing_seconds": view.oldest_finishing_seconds,
        "tenant_blocks": series_rows(view.tenant_blocks, ("tenant",)),
        "tenant_quota_blocks": series_rows(view.tenant_quota_blocks, ("tenant",)),
        "effective_concurrency": series_rows(view.effective_concurrency, ("percentile", "tenant")),
        "peak_running": view.peak_running,
        "length_tokens": series_rows(view.length_tokens, ("percentile",)),
        "maximum_concurrency": series_rows(view.maximum_concurrency, ("percentile",)),
        "waiting_by_reason": plain(view.waiting_by_reason),
    }
