"""What a family of the catalogue is called over OTLP, and in which UCUM unit. Names only; needs no OpenTelemetry.

A name is the one on `/metrics` with a dot after the prefix, less the unit and less `_total`. Turned into Prometheus
names again, as the collector and Prometheus' own OTLP receiver do, it gives the name on `/metrics`.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvledger.catalog import PREFIX, Family, Kind

NAMESPACE = "kvledger."
_UCUM: Mapping[str, str] = {
    "seconds": "s",
    "bytes": "By",
    "ratio": "1",
    "blocks": "{block}",
    "tokens": "{token}",
    "slots": "{slot}",
    "bytes_per_token": "By/{token}",
}
_SUFFIXED = frozenset({"seconds", "bytes", "ratio"})
"""Units that a translation to Prometheus names appends by itself; annotations in braces it drops."""
_COUNTED: Mapping[str, str] = {
    "requests_live": "{request}",
    "requests_waiting": "{request}",
    "requests_never_fit": "{request}",
    "effective_concurrency": "{request}",
    "requests_peak_running": "{request}",
    "maximum_concurrency": "{request}",
    "requests_total": "{request}",
    "rejections_total": "{request}",
    "tenant_rejections_total": "{request}",
    "cancellations_total": "{request}",
    "preemptions_total": "{preemption}",
    "evictions_total": "{block}",
    "cow_copies_total": "{block}",
    "block_seconds_total": "{block}.s",
    "allocation_failures_total": "{allocation}",
    "engine_steps_total": "{step}",
    "engine_restarts_total": "{restart}",
    "findings": "{finding}",
    "agent_events_lost_total": "{record}",
    "agent_reads_retried_total": "{read}",
    "agent_ledger_overflows_total": "{record}",
    "agent_otlp_exports_total": "{export}",
    "agent_otlp_failures_total": "{export}",
}
"""Units of families whose catalogue unit does not say what is counted."""


def otlp_unit(family: Family) -> str:
    """The family's unit in UCUM; empty where a value is a flag, a share of a name without unit, or money."""
    return _COUNTED.get(family.name) or _UCUM.get(family.unit, "")


def otlp_name(family: Family) -> str:
    """The family's name over OTLP, such as `kvledger.time_to_first_token`."""
    name = family.exposed_name.removeprefix(PREFIX)
    if family.kind is Kind.COUNTER:
        name = name.removesuffix("_total")
    if family.unit in _SUFFIXED and family.name not in _COUNTED:
        name = name.removesuffix("_" + family.unit)
    return NAMESPACE + name
