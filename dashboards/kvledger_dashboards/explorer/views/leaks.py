"""Findings with their evidence, and what was checked where there is none. From a snapshot document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvledger_dashboards.explorer.views.engines import known_sum
from kvledger_dashboards.explorer.views.text import UNKNOWN, count, duration

MEANINGS: Mapping[str, str] = {
    "excess_reference": "The block's reference count exceeds the live tables and pins that name it: it can never be "
    "freed. This is a leak.",
    "missing_reference": "More live tables and pins name a block than its reference count says: it can be freed under "
    "a reader.",
    "lost_block": "A block without a reference is neither on the free list nor in the eviction order.",
    "double_listed": "A block is twice on the free list, or free while it is held.",
    "shared_write": "A request may write into a block that another live table holds.",
    "stale_index_entry": "A prefix-index entry names a block that has other content, or none.",
    "pin_overdue": "A pin is older than its lease.",
    "finishing_overdue": "A request has ended and still holds blocks.",
    "idle_hold": "Nothing runs or waits, and blocks are still held, for longer than the engine's numbers can be old.",
    "usage_out_of_range": "The page says that less than none or more than all of the pool is used: blocks were freed "
    "twice, or are counted wrongly.",
    "waiting_without_running": "Requests wait, none runs, and nothing moves.",
    "frozen_counters": "Requests run, and no counter of tokens moves.",
    "deferred_without_progress": "Requests wait for something other than capacity, and nothing moves.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingCard:
    """One finding: what it means, how much of the pool it is, since when, and who did it or may have.

    `growth_blocks_per_minute` is that of all findings of its kind. `people` are the proven owner or the candidates.
    """

    kind: str
    meaning: str
    block_count: int | None
    blocks: tuple[int, ...]
    bytes: float | None
    age_seconds: float | None
    growth_blocks_per_minute: float | None
    proven: bool
    people: tuple[Mapping[str, str], ...]
    known: str
    certainty: str = "certain"
    blind: str | None = None

    @property
    def listed(self) -> str:
        """The block ids, and how many more there are."""
        more = (self.block_count or 0) - len(self.blocks)
        ids = ", ".join(map(str, self.blocks)) or "none is listed"
        return f"{ids} and {more:,} more" if self.blocks and more > 0 else ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """All of an engine's findings. `audited` is False where nothing audits it: then it is unknown whether it leaks."""

    audited: bool
    cards: tuple[FindingCard, ...]
    violations: Mapping[str, float]
    undecided: int | None
    in_doubt: bool
    leaked_blocks: int | None
    checked: tuple[str, ...]


def _candidates_last(card: FindingCard) -> bool:
    """Whoever is proven is read first."""
    return not card.proven


def judgement(snapshot: Mapping[str, Any]) -> Judgement:
    """What a snapshot says to be wrong, and what was looked at."""
    findings, violations = snapshot.get("findings"), snapshot.get("invariant_violations")
    return Judgement(
        audited=findings is not None,
        cards=tuple(sorted((_card(alike, snapshot) for alike in _alike(findings or [])), key=_candidates_last)),
        violations={name: off for name, off in (violations or {}).items() if off},
        undecided=snapshot.get("undecided"),
        in_doubt=bool(snapshot.get("in_doubt")),
        leaked_blocks=snapshot.get("leaked_blocks"),
        checked=_checked(snapshot),
    )


def _checked(snapshot: Mapping[str, Any]) -> tuple[str, ...]:
    pool, violations = snapshot.get("pool") or {}, snapshot.get("invariant_violations")
    if snapshot.get("source") == "scraped":
        judged = ", ".join(snapshot.get("judged") or []) or "nothing"
        return (f"this engine is scraped: its page is watched for {judged}; who holds which block only a ledger tells",)
    looked = f"{count(pool.get('capacity_blocks'))} blocks at publication {count(snapshot.get('published_seq'))}"
    counts = UNKNOWN if violations is None else ", ".join(violations) or "none"
    return (
        f"{looked}: each one's references against the live tables and pins that name it",
        "the free list, the eviction order and the prefix index: each block in one place, each entry with its content",
        "ended requests that still hold blocks, pins beyond their lease, shared blocks that are written",
        f"counts recounted from the blocks: {counts}",
        f"a contradiction becomes a finding when it lasts longer than {duration(snapshot.get('grace_seconds'))}",
    )


def _alike(findings: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Findings that people take for one: same kind, owner, candidates and evidence, seen in several publications."""
    grouped: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for finding in findings:
        owner = (finding.get("owner") or {}).get("serial")
        candidates = tuple(ref["serial"] for ref in finding.get("candidates") or [])
        grouped.setdefault((finding["kind"], owner, candidates, finding["known"]), []).append(finding)
    return list(grouped.values())


def _card(alike: list[Mapping[str, Any]], snapshot: Mapping[str, Any]) -> FindingCard:
    first = min(alike, key=lambda finding: int(finding["since_clock_ns"]))
    now_ns = (snapshot.get("clock") or {}).get("now_ns")
    people = [first["owner"]] if first.get("owner") else first.get("candidates") or []
    return FindingCard(
        kind=first["kind"],
        meaning=MEANINGS.get(first["kind"], "A contradiction in the ledger."),
        block_count=_known_total(finding["block_count"] for finding in alike),
        blocks=tuple(sorted(block for finding in alike for block in finding["blocks"])),
        bytes=known_sum(finding.get("bytes") for finding in alike),
        age_seconds=None if now_ns is None else max(0.0, (now_ns - first["since_clock_ns"]) / 1e9),
        growth_blocks_per_minute=first.get("blocks_per_minute"),
        proven=first.get("owner") is not None,
        people=tuple(_person(ref, now_ns) for ref in people),
        known=first["known"],
        certainty=first.get("certainty") or "certain",
        blind=first.get("blind"),
    )


def _known_total(counts: Iterable[int | None]) -> int | None:
    listed = list(counts)
    known = [count for count in listed if count is not None]
    return sum(known) if len(known) == len(listed) else None


def _person(ref: Mapping[str, Any], now_ns: int | None) -> dict[str, str]:
    ended_ns = ref.get("ended_clock_ns")
    age = None if now_ns is None or ended_ns is None else max(0.0, (now_ns - ended_ns) / 1e9)
    ended = "still live" if ref.get("live") else ref.get("ended") or UNKNOWN
    return {
        "serial": str(ref["serial"]),
        "request": ref.get("id_head") or UNKNOWN,
        "tenant": ref.get("tenant") or UNKNOWN,
        "ended": ended if age is None else f"{ended}, {duration(age)} ago",
    }
