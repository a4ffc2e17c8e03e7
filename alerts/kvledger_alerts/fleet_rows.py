"""The fleet's recording rules, and the questions they answer: many engines added up once per interval. Pure; no YAML.

Levels are `model` (labels job, model) and `tenant` (job, model, tenant). A rule adds up those who report a family; none
puts a number where nobody does. Not for alerts: an engine in trouble must not disappear in a sum.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.catalog import BY_NAME
from kvledger.families.family import Kind
from kvledger.words import BlockState
from kvledger_alerts.table import Parameters, RecordingRow

MODEL, TENANT = "model", "tenant"
LEVELS = {MODEL: ("job", "model"), TENANT: ("job", "model", "tenant")}
TOP = 10
ACTIVE_RATIO = f"{MODEL}:kvledger_pool_active_blocks:ratio"
DOWN = f"{MODEL}:kvledger_engine_down:sum"
_DOWN = "kvledger_engine_up == bool 0 unless kvledger_engine_closed == 1"


class UnknownLabel(LookupError):
    """A rule keeps a label that its family does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of a fleet, over every engine's own series (`raw`) and over the recorded ones; same answer."""

    title: str
    raw: str
    recorded: str


def fleet_rows(parameters: Parameters) -> tuple[RecordingRow, ...]:
    """The recording rules; each only needs scraped series."""
    window = parameters.scale.window(parameters.rate_seconds)
    return (
        *_now_rows(),
        *(_rate(window, MODEL, name, *labels) for name, labels in _MODEL_RATES),
        *(_rate(window, TENANT, name) for name in _TENANT_RATES),
    )


def questions(parameters: Parameters) -> tuple[Question, ...]:
    """What a fleet is asked most, in both forms."""
    window = parameters.scale.window(parameters.rate_seconds)
    return (*_state_questions(), *_rate_questions(window), *_tenant_questions(window))


_MODEL_RATES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("time_to_first_token", ("le",)),
    ("inter_token_latency", ("le",)),
    ("wait", ("cause",)),
    ("requests_total", ("finish_reason",)),
    ("rejections_total", ("reason",)),
    ("preemptions_total", ("mode",)),
    ("prompt_tokens_total", ()),
    ("generation_tokens_total", ()),
)
"""A histogram that keeps `le` is recorded by bucket, any other as its sum."""
_TENANT_RATES = ("requests_total", "tenant_rejections_total", "block_seconds_total", "cost_total")


def _now_rows() -> tuple[RecordingRow, ...]:
    active = f'kvledger_pool_blocks{{state="{BlockState.ACTIVE.word}"}}'
    kept = ", ".join(LEVELS[MODEL])
    # Capacity of pools whose active blocks nobody knows would make the others look emptier than they are.
    capacity = f"((kvledger_pool_capacity_blocks > 0) and ignoring (state) {active})"
    return (
        RecordingRow(
            record=ACTIVE_RATIO,
            expression=f"sum by ({kept}) ({active} and ignoring (state) (kvledger_pool_capacity_blocks > 0))\n"
            f"/ sum by ({kept}) ({capacity})",
        ),
        _now("sum", MODEL, "pool_blocks", "state"),
        _now("sum", MODEL, "pool_capacity_blocks"),
        _now("sum", MODEL, "pool_leaked_blocks"),
        _now("sum", MODEL, "engine_up"),
        _now("count", MODEL, "engine_up"),
        RecordingRow(record=DOWN, expression=f"sum by ({kept}) ({_DOWN})"),
        _now("sum", MODEL, "verdict", "verdict"),
        _now("sum", MODEL, "findings", "kind"),
        _now("sum", MODEL, "requests_live", "state"),
        _now("sum", MODEL, "requests_waiting", "cause"),
        _now("max", MODEL, "oldest_wait_seconds", "cause"),
        _now("sum", TENANT, "tenant_blocks"),
        _now("max", TENANT, "oldest_wait_seconds"),
    )


def _state_questions() -> tuple[Question, ...]:
    active = 'kvledger_pool_blocks{state="active"}'
    return (
        Question(
            title="engine cores by verdict",
            raw="sum by (verdict) (kvledger_verdict)",
            recorded=f"sum by (verdict) ({MODEL}:kvledger_verdict:sum)",
        ),
        Question(
            title="open findings by kind",
            raw="sum by (kind) (kvledger_findings)",
            recorded=f"sum by (kind) ({MODEL}:kvledger_findings:sum)",
        ),
        Question(
            title="engine cores that are gone without a clean stop",
            raw=f"sum({_DOWN})",
            recorded=f"sum({DOWN})",
        ),
        Question(
            title="share of the blocks in use, by model",
            raw=f"sum by (job, model) ({active}) / sum by (job, model) (kvledger_pool_capacity_blocks > 0)",
            recorded=ACTIVE_RATIO,
        ),
        Question(
            title="requests that wait, by cause",
            raw="sum by (cause) (kvledger_requests_waiting)",
            recorded=f"sum by (cause) ({MODEL}:kvledger_requests_waiting:sum)",
        ),
        Question(
            title="the oldest wait, by cause",
            raw="max by (cause) (kvledger_oldest_wait_seconds)",
            recorded=f"max by (cause) ({MODEL}:kvledger_oldest_wait_seconds:max)",
        ),
    )


def _rate_questions(window: str) -> tuple[Question, ...]:
    refused = f"sum(rate(kvledger_rejections_total[{window}]))"
    ended = f"sum(rate(kvledger_requests_total[{window}]))"
    refused_recorded = f"sum({MODEL}:kvledger_rejections:rate{window})"
    ended_recorded = f"sum({MODEL}:kvledger_requests:rate{window})"
    return (
        _quantile("time to first token, P95", "kvledger_time_to_first_token_seconds_bucket", window),
        _quantile("time between tokens, P95", "kvledger_inter_token_latency_seconds_bucket", window),
        Question(
            title="seconds waited per second, by cause",
            raw=f"sum by (cause) (rate(kvledger_wait_seconds_sum[{window}]))",
            recorded=f"sum by (cause) ({MODEL}:kvledger_wait_seconds_sum:rate{window})",
        ),
        Question(
            title="share of requests refused",
            raw=f"{refused} / ({refused} + {ended} > 0)",
            recorded=f"{refused_recorded} / ({refused_recorded} + {ended_recorded} > 0)",
        ),
        Question(
            title="tokens generated per second, by model",
            raw=f"sum by (job, model) (rate(kvledger_generation_tokens_total[{window}]))",
            recorded=f"{MODEL}:kvledger_generation_tokens:rate{window}",
        ),
    )


def _tenant_questions(window: str) -> tuple[Question, ...]:
    return (
        Question(
            title=f"the {TOP} tenants with most blocks",
            raw=f"topk({TOP}, sum by (tenant) (kvledger_tenant_blocks))",
            recorded=f"topk({TOP}, sum by (tenant) ({TENANT}:kvledger_tenant_blocks:sum))",
        ),
        Question(
            title="requests per second, by tenant",
            raw=f"sum by (tenant) (rate(kvledger_requests_total[{window}]))",
            recorded=f"sum by (tenant) ({TENANT}:kvledger_requests:rate{window})",
        ),
        Question(
            title="block-seconds per second, by tenant",
            raw=f"sum by (tenant) (rate(kvledger_block_seconds_total[{window}]))",
            recorded=f"sum by (tenant) ({TENANT}:kvledger_block_seconds:rate{window})",
        ),
    )


def _quantile(title: str, bucket: str, window: str) -> Question:
    return Question(
        title=title,
        raw=f"histogram_quantile(0.95, sum by (le) (rate({bucket}[{window}]))) >= 0",
        recorded=f"histogram_quantile(0.95, sum by (le) ({MODEL}:{bucket}:rate{window})) >= 0",
    )


def _now(operation: str, level: str, name: str, *labels: str) -> RecordingRow:
    exposed = BY_NAME[name].exposed_name
    return RecordingRow(
        record=f"{level}:{exposed}:{operation}",
        expression=f"{operation} by ({_kept(level, name, labels)}) ({exposed})",
    )


def _rate(window: str, level: str, name: str, *labels: str) -> RecordingRow:
    family = BY_NAME[name]
    series = family.exposed_name
    if family.kind is Kind.HISTOGRAM:
        series += "_bucket" if "le" in labels else "_sum"
    return RecordingRow(
        record=f"{level}:{series.removesuffix('_total')}:rate{window}",
        expression=f"sum by ({_kept(level, name, labels)}) (rate({series}[{window}]))",
    )


def _kept(level: str, name: str, labels: tuple[str, ...]) -> str:
    """The labels that a rule keeps. Raises `UnknownLabel`."""
    kept = (*LEVELS[level], *labels)
    if unknown := set(kept) - {"job", "le", *BY_NAME[name].label_names}:
        raise UnknownLabel(f"{name} has no label {sorted(unknown)}; it has {BY_NAME[name].label_names}")
    return ", ".join(kept)
