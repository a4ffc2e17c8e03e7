"""The rows of kvledger itself: an absent agent, sources it cannot read, records it lost, families that vanished."""

from __future__ import annotations

from kvledger.catalog import FAMILIES
from kvledger.families.family import Source
from kvledger_alerts.causes import AGENT, STUCK, UNREADABLE
from kvledger_alerts.pool_rows import ENGINE
from kvledger_alerts.table import AlertRow, Cause, Parameters, Severity

DERIVED = tuple(family.name for family in FAMILIES if family.source is Source.AGENT)
"""What the agent makes of an engine comes and goes with its traffic: not having it is no loss."""


def alert_rows(p: Parameters) -> tuple[AlertRow, ...]:
    """The alerts of kvledger itself."""
    return (_unreadable(p), _source(p), _telemetry(p), _family(p), _agent(p))


def _unreadable(p: Parameters) -> AlertRow:
    return AlertRow(
        name=UNREADABLE,
        severity=Severity.WARNING,
        expression=f"max_over_time(kvledger_agent_source_success[{p.short_window()}]) == 0",
        hold_seconds=p.liveness_hold_seconds,
        summary="A ledger cannot be read: no other alert can fire for its engine",
        description="The agent at {{ $labels.instance }} cannot read the ledger of {{ $labels.source }}.",
        silent="a writer that was busy in every second sample",
    )


def _source(p: Parameters) -> AlertRow:
    return AlertRow(
        name="KvledgerSourceFailing",
        severity=Severity.WARNING,
        expression=f"avg_over_time(kvledger_agent_source_success[{p.scale.window(p.flap_seconds)}]) < {p.flap_ratio}",
        hold_seconds=p.source_hold_seconds,
        summary="A source is read only now and then: what is shown of its engine may be old",
        description="The agent at {{ $labels.instance }} reads {{ $labels.source }} in only "
        "{{ $value | humanizePercentage }} of its samples.",
        silent="a restart of the engine, which costs a minute of samples",
        explained_by=(Cause(UNREADABLE, same=("job", "instance", "source")),),
    )


def _telemetry(p: Parameters) -> AlertRow:
    window = p.rate_window()
    tried = f"increase(kvledger_agent_otlp_exports_total[{window}])"
    return AlertRow(
        name="KvledgerTelemetryLost",
        severity=Severity.WARNING,
        expression=f"increase(kvledger_agent_events_lost_total[{window}]) > 0\n"
        f"or increase(kvledger_agent_ledger_overflows_total[{window}]) > 0\n"
        f"or increase(kvledger_agent_otlp_failures_total[{window}]) / ({tried} > 0) > {p.otlp_ratio}",
        hold_seconds=p.telemetry_hold_seconds,
        summary="Records are lost on their way: figures are right, evidence is not complete",
        description="The agent at {{ $labels.instance }} loses {{ with $labels.source }}records of {{ . }} "
        "({{ $value | humanize }} in the window){{ else }}what it exports over OTLP "
        "({{ $value | humanizePercentage }} of the exports){{ end }}.",
        silent="one overwritten ring in a burst, an agent that was restarted, and a collector that was",
    )


def _family(p: Parameters) -> AlertRow:
    signal = f'kvledger_capability{{signal!~"{"|".join(DERIVED)}"}}'
    recent = p.scale.window(p.family_seconds)
    return AlertRow(
        name="KvledgerFamilyMissing",
        severity=Severity.WARNING,
        expression=f"max_over_time({signal}[{recent}]) == 0\n"
        f"and max_over_time({signal}[{p.scale.window(p.known_seconds)}]) == 1\n"
        f"and ignoring (signal) max_over_time(kvledger_engine_up[{recent}]) == 1",
        hold_seconds=p.family_hold_seconds,
        summary="An engine has stopped to report something: its alerts cannot fire any more",
        description=f"Engine {ENGINE} reported {{{{ $labels.signal }}}} within the last day, and reports it no more.",
        silent="what an engine never reported, and an engine that was removed",
        explained_by=STUCK,
    )


def _agent(p: Parameters) -> AlertRow:
    up = f'up{{job="{p.job}"}}'
    return AlertRow(
        name=AGENT,
        severity=Severity.CRITICAL,
        expression=f"max_over_time({up}[{p.short_window()}]) == 0\nor absent({up})",
        hold_seconds=p.agent_hold_seconds,
        summary="Nobody watches the engines: an agent is gone, or its samples are stale",
        description="{{ with $labels.instance }}The agent at {{ . }} does not answer, or refuses with 503 because its "
        "last sample is too old.{{ else }}Prometheus has no target for job {{ $labels.job }}.{{ end }}",
        silent="one failed scrape, and an agent that is restarted",
    )
