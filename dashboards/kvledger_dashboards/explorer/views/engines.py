"""What every page needs of an engine: whether it can be shown, how it stands, and what an operator is told about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvledger_dashboards.explorer.views.text import UNKNOWN, duration, share, spaced

GRAVITY = ("frozen", "stalled", "leaking", "unknown", "compute_bound", "scheduler_bound", "pool_bound", "healthy")
LEAST_SHARE = 0.01
_COLOURS = {"healthy": "green", "leaking": "red", "frozen": "red", "stalled": "red", "unknown": "gray"}
_ACTIONS = {
    "none": "No action",
    "scale_out": "Scale out",
    "throttle": "Throttle",
    "change_block_policy": "Change the block policy",
    "fix_leak": "Fix the leak",
    "look_downstream": "Look downstream",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHead:
    """One source of the agent. `readable` is false where its ledger could not be read; `error` then says why.

    `reason` says why the verdict is what it is, `to_do` what to do about it, `request_time` where the time of requests
    went, the largest part first.
    `warning` tells that what is shown is not a live engine's present: dead, closed, frozen, or no longer readable.
    """

    key: str
    model: str
    status: str
    readable: bool
    error: str | None
    verdict: str
    colour: str
    action: str
    evidence: str
    warning: str | None
    reason: str | None = None
    to_do: str | None = None
    request_time: str | None = None


def engine_heads(document: Mapping[str, Any]) -> list[EngineHead]:
    """Every source of `/v1/engines`, the gravest verdict first."""
    heads = [_head(line) for line in document["engines"]]
    return sorted(heads, key=lambda head: (_gravity(head), head.key))


def keys(document: Mapping[str, Any]) -> tuple[str, ...]:
    """The engines' names in the agent's order."""
    return tuple(str(line["id"]) for line in document["engines"])


def readable_keys(document: Mapping[str, Any]) -> tuple[str, ...]:
    """The engines of which something can be shown."""
    return tuple(str(line["id"]) for line in document["engines"] if line.get("engine") is not None)


def asked_for(names: Iterable[str], found: Iterable[str]) -> str | None:
    """The first of the engines found that one of the names means: `engine:rank`, or the engine's name alone."""
    known = tuple(found)
    wanted = (key for name in names for key in known if key == name or key.rpartition(":")[0] == name)
    return next(wanted, None)


def _head(line: Mapping[str, Any]) -> EngineHead:
    verdict = line.get("verdict") or {}
    word = str(verdict.get("verdict") or "unknown")
    readable = line.get("engine") is not None
    return EngineHead(
        key=str(line["id"]),
        model=str(line.get("model") or UNKNOWN),
        status=str(line.get("status") or UNKNOWN),
        readable=readable,
        error=line.get("error"),
        verdict=word,
        colour=_COLOURS.get(word, "orange"),
        action=_ACTIONS.get(str(verdict.get("action")), UNKNOWN),
        evidence=str(verdict.get("evidence") or line.get("error") or "nothing is known of this engine"),
        warning=warning_of(line.get("status"), line.get("up")) if readable else None,
        reason=verdict.get("reason"),
        to_do=verdict.get("to_do"),
        request_time=_request_time(verdict),
    )


def _request_time(verdict: Mapping[str, Any]) -> str | None:
    """Parts of request time of one percent or more; None where they are not known or nobody was there."""
    shares: Mapping[str, float] = verdict.get("shares") or {}
    parts = sorted(((part, value) for part, value in shares.items() if value >= LEAST_SHARE), key=lambda it: -it[1])
    if not parts:
        return None
    told = ", ".join(f"{spaced(part)} {share(value, 1.0)}" for part, value in parts)
    return f"Request time of the last {duration(verdict.get('window_seconds'))}: {told}."


def _gravity(head: EngineHead) -> int:
    return GRAVITY.index(head.verdict) if head.verdict in GRAVITY else len(GRAVITY)


def warning_of(status: str | None, up: bool | None, heartbeat_age_seconds: float | None = None) -> str | None:
    """Why the numbers are not a live engine's present; None if they are."""
    age = "" if heartbeat_age_seconds is None else f", its last heartbeat {duration(heartbeat_age_seconds)} old"
    if status == "dead":
        return f"The engine is dead{age}. What is shown is the last state it published."
    if status == "closed":
        return f"The engine has closed its ledger{age}. What is shown is its last state."
    if status == "frozen":
        return f"The engine has work and is frozen{age}. What is shown is the last state it published."
    if status not in ("ok", "idle"):
        return f"The ledger is {spaced(status or UNKNOWN)}: what is shown is the last that could be read."
    return "It is unknown whether the engine is up." if up is None else None


def warning_of_snapshot(snapshot: Mapping[str, Any]) -> str | None:
    """`warning_of` from a snapshot, which knows the age of the heartbeat."""
    liveness = snapshot.get("liveness") or {}
    return warning_of(liveness.get("status"), liveness.get("up"), liveness.get("heartbeat_age_seconds"))


def known_sum(values: Iterable[float | None]) -> float | None:
    """The sum; None as soon as one part is unknown, or when there is none."""
    parts = list(values)
    known = [part for part in parts if part is not None]
    return sum(known) if parts and len(known) == len(parts) else None
