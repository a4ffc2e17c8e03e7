"""The *kvledger itself* board: whether what the other boards show can be trusted, and what it costs to know it.

Owns which panel stands where, its id, text and unit. Ids are stable: links and alerts refer to them.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import units

from kvledger_dashboards import colors, limits
from kvledger_dashboards.boards import shell
from kvledger_dashboards.boards.shell import Panels
from kvledger_dashboards.links import CORE_IN_EXPLORER, Places
from kvledger_dashboards.panels import (
    CORES_HEIGHT,
    Face,
    above,
    colored,
    cores_face,
    count_steps,
    graph_face,
    line_panel,
    stat_face,
    stat_panel,
)
from kvledger_dashboards.parts import liveness
from kvledger_dashboards.queries import agents
from kvledger_dashboards.queries import liveness as engines
from kvledger_dashboards.tables import VALUE, Column, table_panel

UID = "kvledger-itself"
PHASE_COLORS = {"schedule": colors.BLUE, "model": colors.LIGHT_GREEN, "sample": colors.YELLOW, "publish": colors.LILAC}
_CORES = (
    Column(source="engine", title="Engine", url=(CORE_IN_EXPLORER, "Open in the explorer")),
    Column(source="rank", title="Rank", width=80),
    Column(source="instance", title="Agent"),
    Column(source=VALUE, title="Missing", width=110),
)
_SIGNALS = (
    Column(source="signal", title="Signal"),
    Column(source=VALUE, title="Engine cores without", width=190),
)
_VERSIONS = (Column(source="version", title="Agent"), Column(source=VALUE, title="Number", width=90))


def board(places: Places) -> builders.Dashboard:
    """The whole board, ready to be encoded."""
    rows = {
        "Now": _now(),
        "Sources": _sources(),
        "Losses": _losses(),
        "Ledgers": _ledgers(),
        "Signals": _signals(),
        "Cost of the instrument": _cost(),
    }
    text = "Can the other boards be trusted? What the agents read and lose, which signals are missing, what it costs."
    return shell.board(UID, "kvledger itself", text, rows, places)


def _now() -> Panels:
    text = "Agents that are scraped. Fewer than you run: Prometheus' page of targets says which, and why."
    yield stat_panel(stat_face(101, "Agents", text, units.Short), [agents.AGENTS])
    text = "Ledgers and scraped engines whose last sample succeeded. Compare with what you run."
    yield stat_panel(stat_face(102, "Sources read", text, units.Short), [agents.SOURCES])
    text = "Sources whose last sample failed. See *Failing sources* for which, `/v1/engines` for why."
    face = stat_face(103, "Sources failing", text, units.Short)
    yield stat_panel(face, [agents.SOURCES_FAILING], steps_of=count_steps(colors.RED))
    yield liveness.oldest_sample(104)
    text = "Ring records lost per second. Any: request lengths and histories have gaps; a shorter `--interval`."
    face = stat_face(105, "Losing records", text, units.OpsPerSecond)
    yield stat_panel(face, [agents.LOSSES], steps_of=above(limits.LOSS, colors.ORANGE))
    text = "Records per second that found no room in a ledger. Any: raise that engine's limits; its numbers are short."
    face = stat_face(106, "Overflowing", text, units.OpsPerSecond)
    yield stat_panel(face, [agents.OVERFLOWS_NOW], steps_of=above(limits.LOSS, colors.ORANGE))
    text = "Processor cores that the busiest agent uses. Orange from half a core on: a longer `--interval`."
    face = stat_face(107, "Busiest agent", text, "suffix: cores")
    yield stat_panel(face, [agents.PROCESSOR_NOW], steps_of=above(limits.AGENT_CORES, colors.ORANGE)).decimals(2)
    text = "Resident memory of the largest agent. Near its limit: give it more, or fewer engines."
    yield stat_panel(stat_face(108, "Largest agent", text, units.BytesIEC), [agents.MEMORY_NOW])


def _sources() -> Panels:
    text = (
        "Sources whose last sample failed, each with 1. The others are read. A file that is no ledger, of another "
        "version, cut short or not permitted: `/v1/engines` of that agent says which of these."
    )
    yield line_panel(cores_face(201, "Failing sources", text, units.Short), [agents.FAILING])
    text = (
        "Time that the last sample of each source took. Near the sampling interval the agent falls behind: fewer "
        "engines per agent, or a longer interval."
    )
    yield line_panel(cores_face(202, "Duration of a sample", text, units.Seconds), [agents.SAMPLE_DURATION])
    yield liveness.SAMPLE_AGE.at(203, height=CORES_HEIGHT)


def _losses() -> Panels:
    text = (
        "Ring records that were overwritten before the agent read them, per second. The counts of requests stay right; "
        "lengths and histories have gaps. Lasting: a shorter `--interval`."
    )
    yield line_panel(cores_face(301, "Events lost", text, units.OpsPerSecond), [agents.EVENTS_LOST])
    text = (
        "Reads repeated because the writer was active, per second. A few are how it works; as many as samples: a very "
        "busy engine, whose last good values are shown and marked."
    )
    yield line_panel(cores_face(302, "Reads retried", text, units.OpsPerSecond), [agents.READS_RETRIED])
    text = (
        "Records for which a ledger had no room, per second: requests without a slot, pins, table entries. Any: raise "
        "the limits with which that engine is started."
    )
    yield line_panel(cores_face(303, "Ledger overflows", text, units.OpsPerSecond), [agents.OVERFLOWS])


def _ledgers() -> Panels:
    yield liveness.HEARTBEAT.at(401, height=CORES_HEIGHT)
    yield liveness.STEPS.at(402, height=CORES_HEIGHT)
    text = (
        "Starts of engines that took over a predecessor's counters. More than you made: something kills them; read the "
        "end of their logs."
    )
    yield line_panel(cores_face(403, "Restarts", text, units.Short), [engines.RESTARTS])


def _signals() -> Panels:
    text = (
        "Signals that each engine core does not report: their panels have no data for it, and a verdict that needs "
        "them is unknown. 0 is complete. For scraped engines see `kvledger doctor URL`: it says how to switch signals "
        "on."
    )
    face = Face(id=501, title="Missing signals of each engine", description=text, unit=units.Short, span=12, height=10)
    yield table_panel(face, agents.MISSING_OF_EACH, _CORES, sort="Missing", descending=True)
    text = (
        "Signals that at least one engine core does not report, and how many do not. No data when all report all. One "
        "that is missing everywhere: panels and alerts that need it are blind."
    )
    face = Face(id=502, title="Missing signals", description=text, unit=units.Short, span=8, height=10)
    yield table_panel(face, agents.MISSING_SIGNALS, _SIGNALS, sort="Engine cores without", descending=True)
    text = "Versions of agents. More than one for long: see which agents an upgrade left out."
    face = Face(id=503, title="Versions", description=text, unit=units.Short, span=4, height=10)
    yield table_panel(face, agents.VERSIONS, _VERSIONS, sort="Agent", descending=True)


def _cost() -> Panels:
    text = (
        "Share of each engine's step time that it takes to publish the ledger and hand tokens over. Above the dashed "
        "line (5 %): see whether steps are very short, or very many requests end at once."
    )
    face = cores_face(601, "Share of a step for publishing", text, units.PercentUnit)
    yield line_panel(face, [engines.PUBLISH_SHARE], limit=(limits.PUBLISH_SHARE, colors.ORANGE))
    text = (
        "Where the time of steps goes, of all chosen engines. Little `model`: give the engine's process more of a "
        "processor; the accelerator waits for it."
    )
    panel = line_panel(
        cores_face(602, "Time of a step by phase", text, units.PercentUnit),
        [engines.PHASES],
        stacked=True,
    )
    yield colored(panel, PHASE_COLORS)
    text = (
        "Processor cores that each agent uses. It does not slow engines unless they share its cores; half a core "
        "(dashed) is much: a longer `--interval`, fewer engines per agent."
    )
    face = cores_face(603, "Processor of agents", text, "suffix: cores")
    yield line_panel(face, [agents.PROCESSOR], limit=(limits.AGENT_CORES, colors.ORANGE))
    text = "Resident memory of each agent. It grows with pools and requests. One that climbs all the time: restart it."
    yield line_panel(graph_face(604, "Memory of agents", text, units.BytesIEC, span=12), [agents.MEMORY])
    text = (
        "Exports over OTLP, tried and failed. No data without `--otlp`. Failing: see the collector, and the one line "
        "in the agent's log. Boards and alerts do not depend on it."
    )
    panel = line_panel(graph_face(605, "OTLP exports", text, units.OpsPerSecond, span=12), agents.EXPORTS)
    yield colored(panel, {"tried": colors.BLUE, "failed": colors.RED})
