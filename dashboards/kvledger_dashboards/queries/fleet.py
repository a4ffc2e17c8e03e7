"""Queries of a fleet: over the series that the fleet's recording rules make, never over the engines' own.

The rules are in `kvledger_alerts.fleet_rows`, which this package does not import; tests hold every name against it.
"""

from __future__ import annotations

from kvledger.catalog import BY_NAME
from kvledger_dashboards.queries.selection import Query, UnknownSeries, now, ratio, top

SELECTOR = 'job=~"$job",model=~"$model"'
WINDOW = "5m"
"""Of the recorded rates; the rules' `rate_seconds`."""
HOUR_SECONDS = 3600


def recorded(level: str, name: str, operation: str, /, suffix: str = "", **labels: str) -> str:
    """The selector of a recorded series, narrowed to the jobs and models that the reader chose, and to `labels`.

    Raises UnknownSeries for a family that the catalogue does not have.
    """
    if name not in BY_NAME:
        raise UnknownSeries(f"{name!r} is not in kvledger.catalog; use a family's name without its prefix")
    exposed = (BY_NAME[name].exposed_name + suffix).removesuffix("_total")
    matchers = ",".join([SELECTOR, *(f'{label}="{value}"' for label, value in labels.items())])
    return f"{level}:{exposed}:{operation}{{{matchers}}}"


def _model(name: str, operation: str = "sum", suffix: str = "", **labels: str) -> str:
    return recorded("model", name, operation, suffix, **labels)


def _model_rate(name: str, suffix: str = "") -> str:
    return recorded("model", name, f"rate{WINDOW}", suffix)


def _tenant_rate(name: str) -> str:
    return f"sum by (tenant) ({recorded('tenant', name, f'rate{WINDOW}')})"


def _p95(histogram: str) -> Query:
    buckets = f"sum by (model, le) ({_model_rate(histogram, '_bucket')})"
    return Query(f"histogram_quantile(0.95, {buckets}) >= 0", "{{model}}")


_DOWN = f"model:kvledger_engine_down:sum{{{SELECTOR}}}"
_ACTIVE_RATIO = f"model:kvledger_pool_active_blocks:ratio{{{SELECTOR}}}"

CORES = now(f"sum({_model('engine_up', 'count')})", "cores")
UP = now(f"sum({_model('engine_up')})", "up")
DOWN = now(f"sum({_DOWN})", "down")
UNHEALTHY = now(f"sum({_model('verdict')}) - sum({_model('verdict', verdict='healthy')})", "not healthy")
LEAKED_NOW = now(f"sum({_model('pool_leaked_blocks')})", "leaked")
WAITING_NOW = now(f"sum({_model('requests_waiting')})", "waiting")
OLDEST_NOW = now(f"max({_model('oldest_wait_seconds', 'max')})", "oldest")
FULLEST = now(f"max({_ACTIVE_RATIO})", "fullest")

VERDICTS = Query(f"sum by (verdict) ({_model('verdict')})", "{{verdict}}")
LEAKED = Query(f"sum by (model) ({_model('pool_leaked_blocks')})", "{{model}}")
FINDINGS = Query(f"sum by (kind) ({_model('findings')})", "{{kind}}")
ACTIVE_RATIO = Query(f"max by (model) ({_ACTIVE_RATIO})", "{{model}}")
CAPACITY = Query(f"sum by (model) ({_model('pool_capacity_blocks')})", "{{model}}")
CORES_BY_MODEL = Query(f"sum by (model) ({_model('engine_up')})", "{{model}}")
BLOCKS = Query(f"sum by (state) ({_model('pool_blocks')})", "{{state}}")

LIVE = Query(f"sum by (state) ({_model('requests_live')})", "{{state}}")
WAITING = Query(f"sum by (cause) ({_model('requests_waiting')})", "{{cause}}")
OLDEST = Query(f"max by (cause) ({_model('oldest_wait_seconds', 'max')})", "{{cause}}")
WAIT_SECONDS = Query(f"sum by (cause) ({_model_rate('wait', '_sum')})", "{{cause}}")

TTFT = _p95("time_to_first_token")
TOKEN_GAP = _p95("inter_token_latency")
_REFUSED = f"sum by (model) ({_model_rate('rejections_total')})"
REFUSED_SHARE = Query(ratio(_REFUSED, f"{_REFUSED} + sum by (model) ({_model_rate('requests_total')})"), "{{model}}")
REJECTIONS = Query(f"sum by (reason) ({_model_rate('rejections_total')})", "{{reason}}")
ENDINGS = Query(f"sum by (finish_reason) ({_model_rate('requests_total')})", "{{finish_reason}}")
GENERATED = Query(f"sum by (model) ({_model_rate('generation_tokens_total')})", "{{model}}")
PROMPTS = Query(f"sum by (model) ({_model_rate('prompt_tokens_total')})", "{{model}}")
PREEMPTIONS = Query(f"sum by (mode) ({_model_rate('preemptions_total')})", "{{mode}}")

TENANT_BLOCKS = Query(top(f"sum by (tenant) ({recorded('tenant', 'tenant_blocks', 'sum')})"), "{{tenant}}")
TENANT_OLDEST = Query(top(f"max by (tenant) ({recorded('tenant', 'oldest_wait_seconds', 'max')})"), "{{tenant}}")
TENANT_REQUESTS = Query(top(_tenant_rate("requests_total")), "{{tenant}}")
TENANT_REJECTIONS = Query(top(_tenant_rate("tenant_rejections_total")), "{{tenant}}")
TENANT_BLOCK_SECONDS = Query(top(_tenant_rate("block_seconds_total")), "{{tenant}}")
TENANT_COST = Query(top(f"{_tenant_rate('cost_total')} * {HOUR_SECONDS}"), "{{tenant}}")
