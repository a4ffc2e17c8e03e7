"""Rows of the catalogue, written short: one function per kind of row."""

from __future__ import annotations

from kvledger.families.family import Family, Kind, Label, Scope, Source


def gauge(
    name: str,
    help: str,
    unit: str = "",
    *labels: Label,
    scope: Scope = Scope.ENGINE,
    source: Source = Source.READER,
    per_tenant: bool = False,
    per_class: bool = False,
) -> Family:
    """A gauge row; computed from a snapshot unless `source` says otherwise."""
    return Family(
        name=name,
        kind=Kind.GAUGE,
        unit=unit,
        help=help,
        scope=scope,
        source=source,
        labels=labels,
        per_tenant=per_tenant,
        per_class=per_class,
    )


def pool_gauge(name: str, help: str, unit: str, *labels: Label, source: Source = Source.READER) -> Family:
    """A gauge of one pool."""
    return gauge(name, help, unit, *labels, scope=Scope.POOL, source=source)


def group_gauge(name: str, help: str, unit: str) -> Family:
    """A gauge of one cache group."""
    return gauge(name, help, unit, scope=Scope.GROUP)


def histogram(
    name: str, help: str, buckets: tuple[float, ...], *labels: Label, unit: str = "seconds", per_class: bool = False
) -> Family:
    """A histogram the engine keeps in its ledger."""
    return Family(
        name=name,
        kind=Kind.HISTOGRAM,
        unit=unit,
        help=help,
        scope=Scope.ENGINE,
        source=Source.LEDGER,
        labels=labels,
        per_class=per_class,
        buckets=buckets,
    )


def counter(name: str, help: str, unit: str = "", *labels: Label, per_tenant: bool = False) -> Family:
    """A counter the engine keeps in its ledger; it never goes back, whatever restarts."""
    return Family(
        name=name,
        kind=Kind.COUNTER,
        unit=unit,
        help=help,
        scope=Scope.ENGINE,
        source=Source.LEDGER,
        labels=labels,
        per_tenant=per_tenant,
    )


def agent_row(name: str, help: str, unit: str = "", *labels: Label, kind: Kind = Kind.GAUGE) -> Family:
    """A row about the agent itself; these may restart with the agent."""
    return Family(name=name, kind=kind, unit=unit, help=help, scope=Scope.AGENT, source=Source.AGENT, labels=labels)
