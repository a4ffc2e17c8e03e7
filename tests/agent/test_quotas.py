"""A tenant at its quota, as the agent shows it: who waits, for what, how much it holds, and how much fits."""

from __future__ import annotations

from typing import Any

import pytest

from kvledger_agent.lengths import MIN_REQUESTS
from kvledger_engine.quotafile import parse_quotas
from tests.agent.rig import EngineWatch
from tests.engine.rig import STEP_NS, request

QUOTAS = parse_quotas(
    {"tenants": {"acme": {"max_blocks": 6}, "umbrella": {"reserved_blocks": 40}}, "default": {"max_blocks": 20}}
)


def watch(**config: Any) -> EngineWatch:
    return EngineWatch(quotas=QUOTAS, prefix_caching=False, **config)


def test_a_tenant_at_its_quota_is_shown_with_what_it_holds_and_what_it_may_hold() -> None:
    engine = watch()
    engine.submit(
        *[request(f"r{i}", 16, 8, tenant="acme") for i in range(3)], request("free", 16, 8, tenant="umbrella")
    )
    engine.step()
    engine.clock.advance(2 * STEP_NS)
    engine.ledger.publish_now(idle=False)
    seen = engine.look().requests
    assert seen is not None
    assert seen.waiting is not None
    assert seen.oldest_wait_seconds is not None
    assert seen.tenant_blocks is not None
    assert {labels: count for labels, count in seen.waiting.items() if count} == {("tenant_quota", "default"): 2.0}
    assert seen.oldest_wait_seconds == {("tenant_quota", "acme"): pytest.approx(3e-3)}
    assert seen.tenant_blocks["acme",] == 4
    assert seen.tenant_quota_blocks == {("acme",): 6.0}, "what umbrella may hold is the pool"


def test_what_is_reserved_for_others_is_no_part_of_what_a_tenant_can_hold() -> None:
    engine = watch()
    engine.submit(request("a", tenant="acme"), request("b", tenant="stranger"))
    engine.finish()
    seen = engine.look().requests
    assert seen is not None
    assert seen.tenant_quota_blocks == {("acme",): 6.0, ("stranger",): 20.0}


def test_effective_concurrency_is_within_the_quota() -> None:
    engine = watch()
    for tenant in ("acme", "umbrella", "stranger"):
        for number in range(MIN_REQUESTS):
            engine.submit(request(f"{tenant}{number}", 4, 4, tenant=tenant))
        engine.finish()
    seen = engine.look().requests
    assert seen is not None
    assert seen.effective_concurrency is not None
    fits = {tenant: seen.effective_concurrency["95", tenant] for tenant in ("acme", "umbrella", "stranger")}
    assert fits == {"acme": 3.0, "umbrella": pytest.approx(32.0), "stranger": 10.0}, "2 blocks each, of 6, 64 and 20"
    assert seen.maximum_concurrency is not None
    assert seen.maximum_concurrency["95",] == pytest.approx(32.0)
