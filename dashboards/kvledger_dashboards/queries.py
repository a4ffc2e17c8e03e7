"""Every PromQL query of the boards, by what it shows. Names come from the catalogue; no panel, no layout, no colour.

A query that has nothing to say returns nothing: a ratio without traffic and a quantile without observations are absent,
never 0 and never NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from kvledger.catalog import BY_NAME
from kvledger.families.family import Kind, Scope

AGENT_SELECTOR = 'job=~"$job",instance=~"$instance"'
ENGINE_SELECTOR = f'{AGENT_SELECTOR},engine=~"$engine",model=~"$model"'
WINDOW = "[$__rate_interval]"
CORE = "instance, engine, rank"
"""What tells one engine core from another; its legend is `CORE_LEGEND`."""
CORE_LEGEND = "{{engine}}/{{rank}} {{instance}}"
TENANTS_SHOWN = 10


class UnknownSeries(LookupError):
    """A query names a family or a label that the catalogue does not have."""


@dataclass(frozen=True, slots=True)
class Query:
    """One query: PromQL with Grafana's variables in it, and the name of each of its series."""

    expr: str
    legend: str
    instant: bool = False


def select(name: str, /, suffix: str = "", **labels: str) -> str:
    """The selector of a family, narrowed to what the reader chose, and to `labels`.

    `suffix` is `_bucket`, `_sum` or `_count` of a histogram. Raises UnknownSeries for a name or a label that the
    catalogue does not have.
    """
    if name not in BY_NAME:
        raise UnknownSeries(f"{name!r} is not in kvledger.catalog; use a family's name without its prefix")
    family = BY_NAME[name]
    if unknown := labels.keys() - set(family.label_names):
        raise UnknownSeries(f"{name} has no label {sorted(unknown)}; it has {family.label_names}")
    chosen = AGENT_SELECTOR if family.scope is Scope.AGENT else ENGINE_SELECTOR
    matchers = ",".join([chosen, *(f'{label}="{value}"' for label, value in labels.items())])
    return f"{family.exposed_name}{suffix}{{{matchers}}}"


def per_second(name: str, by: str = "") -> str:
    """A counter's, or a histogram's sum's, rate, added up by the labels in `by`."""
    suffix = "_sum" if BY_NAME[name].kind is Kind.HISTOGRAM else ""
    return f"sum{f' by ({by}) ' if by else ''}(rate({select(name, suffix)}{WINDOW}))"


def quantile(share: float, histogram: str) -> str:
    """A quantile of a histogram over all its series; absent where nothing was observed."""
    return f"histogram_quantile({share}, sum by (le) (rate({select(histogram, '_bucket')}{WINDOW}))) >= 0"


def _now(expr: str, legend: str) -> Query:
    return Query(expr, legend, instant=True)


VERDICTS = MappingProxyType(
    {
        word: _now(f"sum({select('verdict', verdict=word)})", word)
        for word in ("healthy", "leaking", "stalled", "frozen", "unknown")
    }
)
"""How many engine cores have each verdict."""
VERDICT_OF_EACH = _now(f"max by ({CORE}, verdict) ({select('verdict')}) == 1", f"{CORE_LEGEND}: {{{{verdict}}}}")
ENGINES_DOWN = _now(f"sum(1 - {select('engine_up')} - {select('engine_closed')})", "down")
"""Without those that were stopped cleanly."""
OPEN_FINDINGS = _now(f"sum({select('findings')})", "findings")
OLDEST_SAMPLE = _now(f"max({select('agent_source_age_seconds')})", "oldest sample")

BYTES_PER_TOKEN = _now(f"max by (model) (sum by (model, {CORE}) ({select('group_bytes_per_token')}))", "{{model}}")
BLOCK_SIZE = _now(f"max by (model) ({select('group_block_size_tokens')})", "{{model}}")
PEAK_ACTIVE = _now(f"max by (model) ({select('pool_peak_active_blocks')})", "{{model}}")
CONCURRENCY = (
    *(
        _now(f"min by (model) ({select('maximum_concurrency', percentile=p)})", f"{{{{model}}}} P{p}")
        for p in ("50", "95", "99")
    ),
    _now(f"max by (model) ({select('requests_peak_running')})", "{{model}} reached"),
)
"""What fits at the length percentiles, beside the most that ran in the last minute."""
REJECTION_RATIO = _now(f"max by (model) ({select('scorecard_rejection_ratio')})", "{{model}}")
TTFT_P95 = _now(f"max by (model) ({select('scorecard_ttft_p95_seconds')})", "{{model}}")
COST_PER_REQUEST = _now(f"max by (model) ({select('scorecard_cost_per_request')})", "{{model}}")
"""These seven are the figures of `kvledger scorecard`, of the worst engine core of each model."""

BLOCKS = tuple(Query(f"sum({select('pool_blocks', state=state)})", state) for state in ("active", "cached", "free"))
"""In the order of the stack, from the bottom."""
CAPACITY = Query(f"sum({select('pool_capacity_blocks')})", "capacity")
ALERT_WATERMARK = Query(
    f"sum({select('pool_alert_watermark_ratio')} * {select('pool_capacity_blocks')})", "alert watermark"
)
ADMISSION_WATERMARK = Query(
    f"sum({select('pool_capacity_blocks')} - {select('pool_admission_watermark_blocks')})", "admission watermark"
)
LOGICAL = Query(f"sum({select('group_logical_blocks')})", "logical")
SHARED = Query(f"sum({select('group_shared_blocks')})", "shared")
ACTIVE_SHARE = Query(
    f"sum by ({CORE}) ({select('pool_blocks', state='active')}) / sum by ({CORE}) ({select('pool_capacity_blocks')})",
    CORE_LEGEND,
)
LOWEST_ALERT_WATERMARK = Query(f"min({select('pool_alert_watermark_ratio')})", "alert watermark")

WAIT_SECONDS = Query(per_second("wait", "cause"), "{{cause}}")
WAITING_NOW = Query(f"sum by (cause) ({select('requests_waiting')})", "{{cause}}")
OLDEST_WAIT = Query(f"max by (cause) ({select('oldest_wait_seconds')})", "{{cause}}")

REJECTIONS = Query(per_second("rejections_total", "reason"), "{{reason}}")
ENDINGS = Query(per_second("requests_total", "finish_reason"), "{{finish_reason}}")
TTFT = tuple(Query(quantile(share / 100, "time_to_first_token"), f"P{share}") for share in (50, 95, 99))

LEAKED = Query(f"sum by ({CORE}) ({select('pool_leaked_blocks')})", CORE_LEGEND)
FINDINGS = Query(f"sum by (kind) ({select('findings')})", "{{kind}}")
VIOLATIONS = Query(f"sum by (invariant) (abs({select('invariant_violations')}))", "invariant {{invariant}}, blocks off")

TENANT_BLOCKS = Query(f"topk({TENANTS_SHOWN}, sum by (tenant) ({select('tenant_blocks')}))", "{{tenant}}")
TENANT_REJECTIONS = Query(f"topk({TENANTS_SHOWN}, {per_second('tenant_rejections_total', 'tenant')})", "{{tenant}}")

HEARTBEAT_AGE = Query(
    f"max by ({CORE}) ({select('engine_heartbeat_age_seconds')} unless {select('engine_idle')} == 1)", CORE_LEGEND
)
STEPS = Query(per_second("engine_steps_total", CORE), CORE_LEGEND)
SAMPLE_AGE = Query(f"max by (instance, source) ({select('agent_source_age_seconds')})", "{{source}} {{instance}}")

FIRING_ALERTS = 'ALERTS{alertname=~"Kvledger.+",alertstate="firing",engine=~"$engine|"}'
"""Alerts about the chosen engines, and those about no engine at all, such as an absent agent."""
RESTARTS = f"increase({select('engine_restarts_total')}{WINDOW}) > 0"
