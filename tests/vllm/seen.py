"""What the agent says of one engine, in the words of the debug hook's document: the two are to be equal."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from kvledger_agent.agent import Agent
from kvledger_agent.documents import requests_document
from kvledger_agent.ledger_source import LedgerSource
from kvledger_agent.observation import Observation

ENGINE = "vllm:0"


def observation_of(agent: Agent) -> Observation:
    """A fresh look at the one engine."""
    (observation,) = agent.sample_once().observations
    return observation


def await_idle(agent: Agent, seconds: float = 60.0) -> None:
    """Look until the engine has nothing to do. Raises `AssertionError`."""
    deadline = time.monotonic() + seconds
    while not observation_of(agent).liveness.idle:
        assert time.monotonic() < deadline, f"the engine still works after {seconds:g} s"
        time.sleep(0.1)


def counts_of(agent: Agent) -> dict[str, Any]:
    """Every count of the agent that vLLM's own objects have, too. Takes a sample."""
    seen = observation_of(agent)
    pool, groups, requests = seen.pool, seen.groups, seen.requests
    assert pool is not None
    assert requests is not None
    assert pool.pinned_blocks is not None
    document = agent.ask(ENGINE, _requests).result()
    states: Counter[str] = Counter()
    for (state, *_), number in (requests.live or {}).items():
        states[state] += int(number)
    return {
        "seq": seen.published_seq,
        "free": pool.free_blocks,
        "cached": pool.cached_blocks,
        "active": pool.active_blocks,
        "shared": groups[0].shared_blocks,
        "logical": groups[0].logical_blocks,
        "running": states["running"],
        "waiting": states["waiting"] + states["preempted"],
        "deferred": sum(int(n) for (cause, *_), n in (requests.waiting or {}).items() if cause == "deferred"),
        "pinned": sum(pool.pinned_blocks.values()),
        "requests": {f"{row['id_head']}|{row['id_tail']}": _row(row) for row in document["requests"]},
        "preemptions": _total(seen, "preemptions_total"),
        "prefix_queried": _total(seen, "prefix_queried_tokens_total"),
        "prefix_hit": _total(seen, "prefix_hit_tokens_total"),
        "prompt_tokens": _total(seen, "prompt_tokens_total"),
        "generation_tokens": _total(seen, "generation_tokens_total"),
        "finished": _by_first_label(seen, "requests_total"),
        "aborted": _by_first_label(seen, "cancellations_total").get("disconnect", 0),
    }


def _requests(source: LedgerSource) -> dict[str, Any]:
    return requests_document(source.reader.sample(), source.reader.audit())


def _row(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "blocks": row["blocks"],
        "shared": row["shared_blocks"],
        "peak": row["peak_blocks"],
        "state": row["state"],
        "computed": row["computed_tokens"] if row["state"] == "running" else None,
        "output": row["output_tokens"],
        "preemptions": row["preemptions"],
        "prompt": row["prompt_tokens"],
    }


def _total(seen: Observation, family: str) -> int:
    return int(sum(seen.totals.counters[family].values()))


def _by_first_label(seen: Observation, family: str) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for labels, value in seen.totals.counters[family].items():
        totals[labels[0]] += int(value)
    return {label: count for label, count in totals.items() if count}


def differences(truth: dict[str, Any], seen: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What is not equal: name -> (vLLM's, the agent's); requests one by one."""
    wrong = {k: (truth[k], v) for k, v in seen.items() if k != "requests" and truth[k] != v}
    mine, theirs = seen["requests"], truth["requests"]
    for name in sorted({*mine, *theirs}):
        if mine.get(name) != theirs.get(name):
            wrong[name] = (theirs.get(name), mine.get(name))
    return wrong
