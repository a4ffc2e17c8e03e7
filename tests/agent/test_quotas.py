"""A tenant at its quota, as the agent shows it: who waits, for what, how much it holds, and how much fits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.catalog import BY_NAME
from kvledger_agent.exporters.families import answer
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


def _exported(engine: EngineWatch) -> dict[tuple[str, ...], float]:
    """What is exported as `kvledger_effective_concurrency`, by percentile and tenant."""
    said = answer(engine.look(), BY_NAME["effective_concurrency"])
    assert isinstance(said, dict)
    return said


def _served(engine: EngineWatch, tenant: str, tokens: int, times: int = MIN_REQUESTS) -> None:
    for number in range(times):
        engine.submit(request(f"{tenant}{tokens}-{number}", tokens - 4, 4, tenant=tenant))
        engine.finish()


@given(
    acme=st.integers(6, 64),
    reserved=st.integers(0, 40),
    umbrella=st.one_of(st.none(), st.integers(6, 64)),
    tokens=st.integers(5, 20),
)
@settings(max_examples=8, deadline=None)
def test_the_formula_of_capacity_is_exported_within_whatever_quotas_there_are(
    acme: int, reserved: int, umbrella: int | None, tokens: int
) -> None:
    """A tenant can hold its maximum at most, and nothing that is reserved for the other."""
    rows: dict[str, Any] = {"acme": {"max_blocks": acme}, "umbrella": {"reserved_blocks": reserved}}
    if umbrella is not None:
        rows["umbrella"]["max_blocks"] = max(umbrella, reserved)
    engine = EngineWatch(quotas=parse_quotas({"tenants": rows}), prefix_caching=False)
    for tenant in rows:
        _served(engine, tenant, tokens)
    blocks = -(-tokens // 4)
    ceilings = {"acme": min(acme, 64 - reserved), "umbrella": 64 if umbrella is None else max(umbrella, reserved)}
    wanted = {
        (percentile, tenant): pytest.approx(ceiling / blocks)
        for percentile in ("50", "95", "99")
        for tenant, ceiling in ceilings.items()
    }
    assert _exported(engine) == wanted


def test_it_is_computed_again_when_longer_requests_end_and_after_a_start_with_another_quota() -> None:
    engine = watch()
    _served(engine, "acme", 8)
    assert _exported(engine)["95", "acme"] == 6 / 2
    _served(engine, "acme", 16, MIN_REQUESTS // 2)
    assert (_exported(engine)["50", "acme"], _exported(engine)["95", "acme"]) == (6 / 2, 6 / 4)
    larger = EngineWatch(quotas=parse_quotas({"tenants": {"acme": {"max_blocks": 12}}}), prefix_caching=False)
    _served(larger, "acme", 16)
    assert _exported(larger)["95", "acme"] == 12 / 4
