"""What promtool tests of the fleet's rules: series of several engines, and what is recorded from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kvledger_alerts.cases import growing, steady

Expected = tuple[tuple[str, float], ...]
"""Labels as in PromQL, and the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCase:
    """One test: at `at`, each record has exactly these series; an empty tuple says that it has none."""

    title: str
    series: Mapping[str, str]
    recorded: Mapping[str, Expected]
    at: str = "10m"


CORES = (("a", "0", "m1"), ("a", "1", "m1"), ("b", "0", "m2"))
"""Engine, rank and model: two ranks of one engine, and another engine."""
SCRAPED = ("page", "0", "m1")
"""An engine that only its own page tells of."""


def _series(name: str, core: tuple[str, str, str], more: str = "") -> str:
    engine, rank, model = core
    labels = f'engine="{engine}",rank="{rank}",model="{model}",instance="agent-{engine}-{rank}:9470",job="kvledger"'
    return f"kvledger_{name}{{{labels}{',' if more else ''}{more}}}"


def _each(name: str, values: tuple[str, ...], more: str = "") -> dict[str, str]:
    """A series of every core."""
    return {_series(name, core, more): value for core, value in zip(CORES, values, strict=True)}


def _model(*values: tuple[str, float], more: str = "") -> Expected:
    return tuple((f'job="kvledger",model="{model}"{"," if more else ""}{more}', value) for model, value in values)


def _both(first: float, second: float, more: str = "") -> Expected:
    return _model(("m1", first), ("m2", second), more=more)


def _rates(name: str, more: str = "") -> dict[str, str]:
    """A counter that grows by 15, 30 and 45 in 15 s: 1, 2 and 3 a second."""
    return _each(name, (growing(15), growing(30), growing(45)), more)


STATES = FleetCase(
    title="ranks and engines of a model are added up, models are kept apart",
    series=MappingProxyType(
        {
            **_each("pool_blocks", (steady(10), steady(20), steady(5)), 'pool="gpu",state="active"'),
            **_each("pool_blocks", (steady(30), steady(20), steady(5)), 'pool="gpu",state="free"'),
            **_each("pool_capacity_blocks", (steady(40), steady(40), steady(10)), 'pool="gpu"'),
            **_each("pool_leaked_blocks", (steady(1), steady(2), steady(0)), 'pool="gpu"'),
            **_each("engine_up", (steady(1), steady(0), steady(0))),
            **_each("engine_closed", (steady(0), steady(0), steady(1))),
            **_each("verdict", (steady(1), steady(1), steady(0)), 'verdict="healthy"'),
            **_each("findings", (steady(2), steady(1), steady(0)), 'kind="lost_block"'),
            **_each("requests_live", (steady(7), steady(8), steady(9)), 'state="running",class="batch"'),
            **_each("requests_waiting", (steady(3), steady(4), steady(0)), 'cause="pool",class="batch"'),
            **_each("oldest_wait_seconds", (steady(30), steady(60), steady(1)), 'cause="pool",tenant="acme"'),
            **_each("tenant_blocks", (steady(10), steady(20), steady(5)), 'tenant="acme"'),
        }
    ),
    recorded=MappingProxyType(
        {
            "model:kvledger_pool_active_blocks:ratio": _both(0.375, 0.5),
            "model:kvledger_pool_blocks:sum": (*_both(30, 5, 'state="active"'), *_both(50, 5, 'state="free"')),
            "model:kvledger_pool_capacity_blocks:sum": _both(80, 10),
            "model:kvledger_pool_leaked_blocks:sum": _both(3, 0),
            "model:kvledger_engine_up:sum": _both(1, 0),
            "model:kvledger_engine_up:count": _both(2, 1),
            "model:kvledger_engine_down:sum": _model(("m1", 1)),
            "model:kvledger_verdict:sum": _both(2, 0, 'verdict="healthy"'),
            "model:kvledger_findings:sum": _both(3, 0, 'kind="lost_block"'),
            "model:kvledger_requests_live:sum": _both(15, 9, 'state="running"'),
            "model:kvledger_requests_waiting:sum": _both(7, 0, 'cause="pool"'),
            "model:kvledger_oldest_wait_seconds:max": _both(60, 1, 'cause="pool"'),
            "tenant:kvledger_tenant_blocks:sum": _both(30, 5, 'tenant="acme"'),
            "tenant:kvledger_oldest_wait_seconds:max": _both(60, 1, 'tenant="acme"'),
        }
    ),
)

RATES = FleetCase(
    title="counters become rates before they are added up, by the labels that somebody asks for",
    series=MappingProxyType(
        {
            **_rates("time_to_first_token_seconds_bucket", 'le="0.1",class="batch"'),
            **_rates("inter_token_latency_seconds_bucket", 'le="0.05",class="batch"'),
            **_rates("wait_seconds_sum", 'cause="pool",class="batch"'),
            **_rates("requests_total", 'finish_reason="stop",tenant="acme"'),
            **_rates("rejections_total", 'reason="queue_full"'),
            **_rates("preemptions_total", 'mode="recompute"'),
            **_rates("prompt_tokens_total"),
            **_rates("generation_tokens_total"),
            **_rates("tenant_rejections_total", 'tenant="acme"'),
            **_rates("block_seconds_total", 'tenant="acme"'),
            **_rates("cost_total", 'tenant="acme"'),
        }
    ),
    recorded=MappingProxyType(
        {
            "model:kvledger_time_to_first_token_seconds_bucket:rate5m": _both(3, 3, 'le="0.1"'),
            "model:kvledger_inter_token_latency_seconds_bucket:rate5m": _both(3, 3, 'le="0.05"'),
            "model:kvledger_wait_seconds_sum:rate5m": _both(3, 3, 'cause="pool"'),
            "model:kvledger_requests:rate5m": _both(3, 3, 'finish_reason="stop"'),
            "model:kvledger_rejections:rate5m": _both(3, 3, 'reason="queue_full"'),
            "model:kvledger_preemptions:rate5m": _both(3, 3, 'mode="recompute"'),
            "model:kvledger_prompt_tokens:rate5m": _both(3, 3),
            "model:kvledger_generation_tokens:rate5m": _both(3, 3),
            "tenant:kvledger_requests:rate5m": _both(3, 3, 'tenant="acme"'),
            "tenant:kvledger_tenant_rejections:rate5m": _both(3, 3, 'tenant="acme"'),
            "tenant:kvledger_block_seconds:rate5m": _both(3, 3, 'tenant="acme"'),
            "tenant:kvledger_cost:rate5m": _both(3, 3, 'tenant="acme"'),
        }
    ),
)

PARTLY_KNOWN = FleetCase(
    title="an engine that does not tell its active blocks is not taken for an empty one, nor one without a clean stop",
    series=MappingProxyType(
        {
            **_each("pool_blocks", (steady(10), steady(20), steady(5)), 'pool="gpu",state="active"'),
            **_each("pool_capacity_blocks", (steady(40), steady(40), steady(0)), 'pool="gpu"'),
            _series("pool_capacity_blocks", SCRAPED, 'pool="gpu"'): steady(1000),
            _series("engine_up", SCRAPED): steady(0),
        }
    ),
    recorded=MappingProxyType(
        {
            "model:kvledger_pool_active_blocks:ratio": _model(("m1", 0.375)),
            "model:kvledger_pool_capacity_blocks:sum": _both(1080, 0),
            "model:kvledger_engine_down:sum": _model(("m1", 1)),
            "model:kvledger_pool_leaked_blocks:sum": (),
            "model:kvledger_findings:sum": (),
            "model:kvledger_requests:rate5m": (),
            "tenant:kvledger_cost:rate5m": (),
        }
    ),
)

CASES = (STATES, RATES, PARTLY_KNOWN)
