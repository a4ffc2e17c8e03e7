"""The rows there are. A new one is a module with a `measure`, and a line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench import (
    agent,
    control,
    fleet,
    instrument,
    paging,
    pluginstep,
    pluginthroughput,
    pool,
    prefix,
    publication,
    reader,
    serving,
    throughput,
    vllmdecode,
    vllmpool,
    vllmtrace,
)
from bench.effort import Effort
from bench.result import Result


@dataclass(frozen=True, slots=True)
class Row:
    """A measurement that can be asked for by name."""

    name: str
    measure: Callable[[Effort], list[Result]]


ROWS = (
    Row(publication.NAME, publication.measure),
    Row(control.NAME, control.measure),
    Row(instrument.NAME, instrument.measure),
    Row(pool.NAME, pool.measure),
    Row(prefix.NAME, prefix.measure),
    Row(paging.NAME, paging.measure),
    Row(reader.NAME, reader.measure),
    Row(agent.NAME, agent.measure),
    Row(fleet.NAME, fleet.measure),
    Row(throughput.NAME, throughput.measure),
    Row(serving.TINY_ROW.name, serving.TINY_ROW.measure),
    Row(serving.MIDDLE_ROW.name, serving.MIDDLE_ROW.measure),
    Row(vllmpool.NAME, vllmpool.measure),
    Row(vllmdecode.NAME, vllmdecode.measure),
    Row(vllmtrace.NAME, vllmtrace.measure),
    Row(pluginstep.NAME, pluginstep.measure),
    Row(pluginthroughput.NAME, pluginthroughput.measure),
)
