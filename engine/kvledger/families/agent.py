"""Families of what the agent makes of a ledger, of an engine being alive, and of the agent itself."""

from __future__ import annotations

from kvledger.families.build import agent_row, gauge
from kvledger.families.family import Family, Kind, Label, Source
from kvledger.words import FindingKind, NoteKind, Reason, Verdict, WaitCause

_PART = Label("part", (*(f"wait_{word}" for word in WaitCause.words()), "prefill", "decode", "other"))
_SOURCE = Label("source", None)

FINDINGS: tuple[Family, ...] = (
    gauge(
        "findings",
        "Open findings by what the ledger shows.",
        "",
        Label("kind", FindingKind.words()),
        source=Source.AGENT,
    ),
    gauge(
        "notes",
        "What is worth knowing and no fault, by kind: one while it is so, else zero.",
        "",
        Label("kind", NoteKind.words()),
        source=Source.AGENT,
    ),
    gauge(
        "invariant_violations", "Lasting violations by invariant.", "", Label("invariant", None), source=Source.AGENT
    ),
    gauge(
        "verdict",
        "One for the current verdict, zero for the others.",
        "",
        Label("verdict", Verdict.words()),
        source=Source.AGENT,
    ),
    gauge(
        "verdict_reason",
        "One for the reason of the current verdict, zero for the others.",
        "",
        Label("verdict_reason", Reason.words()),
        source=Source.AGENT,
    ),
    gauge("verdict_share", "Parts of request time in the window, summing to one.", "", _PART, source=Source.AGENT),
)

LIVENESS: tuple[Family, ...] = (
    gauge("engine_up", "One while the engine holds its ledger's lock, else zero."),
    gauge("engine_closed", "One after a clean stop of the engine, zero while it lives and after any other end."),
    gauge("engine_heartbeat_age_seconds", "Time since the engine's last heartbeat.", "seconds"),
    gauge("engine_idle", "One while the engine says it has no work, else zero."),
    gauge("capability", "One if the source reports this signal, else zero.", "", Label("signal", None)),
)

AGENT_SELF: tuple[Family, ...] = (
    agent_row(
        "build_info",
        "Always one; the agent's versions are its labels.",
        "",
        Label("version", None),
        Label("python", None),
    ),
    agent_row("agent_source_success", "One if the last sample of a source succeeded, else zero.", "", _SOURCE),
    agent_row("agent_source_duration_seconds", "Time the last sample of a source took.", "seconds", _SOURCE),
    agent_row("agent_source_age_seconds", "Age of a source's last good sample at this scrape.", "seconds", _SOURCE),
    agent_row(
        "agent_events_lost_total", "Ring records overwritten before they were read.", "", _SOURCE, kind=Kind.COUNTER
    ),
    agent_row(
        "agent_reads_retried_total", "Reads repeated because the writer was active.", "", _SOURCE, kind=Kind.COUNTER
    ),
    agent_row(
        "agent_ledger_overflows_total",
        "Records for which a source's ledger had no room, ever: requests without a slot, pins, table entries.",
        "",
        _SOURCE,
        kind=Kind.COUNTER,
    ),
    agent_row("agent_cpu_seconds_total", "Processor time the agent has used.", "seconds", kind=Kind.COUNTER),
    agent_row("agent_memory_bytes", "Resident memory of the agent.", "bytes"),
    agent_row("agent_otlp_exports_total", "Exports over OTLP that were tried.", kind=Kind.COUNTER),
    agent_row("agent_otlp_failures_total", "Exports over OTLP that the endpoint did not take.", kind=Kind.COUNTER),
)
