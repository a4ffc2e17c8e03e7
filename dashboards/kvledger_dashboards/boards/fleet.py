"""The *Fleet* board: many engines, added up by the fleet's recording rules; which model, then which tenant.

Owns which panel stands where, its id, text and unit. Ids are stable: links and alerts refer to them.
"""

from __future__ import annotations

from collections.abc import Mapping

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import units

from kvledger_dashboards import colors, limits, links
from kvledger_dashboards.boards import oncall, shell
from kvledger_dashboards.boards.shell import Panel, Panels
from kvledger_dashboards.links import Places
from kvledger_dashboards.panels import above, colored, count_steps, graph_face, line_panel, stat_face, stat_panel
from kvledger_dashboards.queries import fleet
from kvledger_dashboards.queries.selection import Query

UID = "kvledger-fleet"
FINDINGS_HEIGHT = 12
"""The legend has a line for every kind."""


def board(places: Places) -> builders.Dashboard:
    """The whole board, ready to be encoded."""
    rows = {
        "Now": _now(),
        "Engines": _engines(),
        "Requests": _requests(),
        "Service by model": _service(),
        "Work": _work(),
        "Tenants": _tenants(),
    }
    text = (
        "Which model is in trouble, and which tenant. Over the recorded series of the fleet's rules (docs/fleet.md): "
        "without them there is no data. For one engine go on to On call."
    )
    return shell.fleet_board(UID, "Fleet", text, rows, places)


def _now() -> Panels:
    text = "Engine cores that any agent knows, gone ones included. Fewer than you run: an agent is missing."
    yield stat_panel(stat_face(101, "Engine cores", text, units.Short), [fleet.CORES])
    text = "Engine cores that live. Fewer than there are: some were stopped, or are down; the next number says which."
    yield stat_panel(stat_face(102, "Up", text, units.Short), [fleet.UP])
    text = "Engine cores that are gone without a clean stop. Go to *On call* for which, and read the end of their logs."
    face = stat_face(103, "Down", text, units.Short)
    yield stat_panel(face, [fleet.DOWN], steps_of=count_steps(colors.RED)).links([_on_call()])
    text = "Engine cores with any other verdict than healthy. See *Engine cores by verdict* for which."
    face = stat_face(104, "Not healthy", text, units.Short)
    yield stat_panel(face, [fleet.UNHEALTHY], steps_of=count_steps(colors.ORANGE)).links([_on_call()])
    text = "Blocks that nobody is entitled to, in all pools. *On call* shows in which; restart those engines."
    face = stat_face(105, "Leaked in the fleet", text, units.Short)
    yield stat_panel(face, [fleet.LEAKED_NOW], steps_of=count_steps(colors.RED)).links([_on_call()])
    text = "Share of the blocks in use of the fullest model. Orange: at the usual alert watermark; add engines of it."
    face = stat_face(106, "Fullest model", text, units.PercentUnit)
    yield stat_panel(face, [fleet.FULLEST], steps_of=above(limits.NEARLY_FULL, colors.ORANGE))
    text = "Requests that wait, everywhere. Growing: see for which cause before you add engines."
    yield stat_panel(stat_face(107, "Waiting", text, units.Short), [fleet.WAITING_NOW])
    text = (
        "Age of the oldest open wait anywhere. Orange from 60 s on, as somebody is told then: see *On call* for what."
    )
    face = stat_face(108, "Oldest wait", text, units.Seconds)
    yield stat_panel(face, [fleet.OLDEST_NOW], steps_of=above(limits.OLDEST_WAIT_SECONDS, colors.ORANGE))


def _engines() -> Panels:
    text = "Engine cores by verdict. Many with one bad one at once: look for a release, or a shared cause."
    yield _stack(201, "Engine cores by verdict", text, units.Short, fleet.VERDICTS, colors.VERDICTS)
    text = "Engine cores that live, by model. A step down is a loss: compare with the marks of critical alerts."
    yield _stack(202, "Engine cores by model", text, units.Short, fleet.CORES_BY_MODEL)
    text = "Share of the blocks in use, by model, with the usual alert watermark dashed. Above it: add engines."
    face = graph_face(203, "Active share by model", text, units.PercentUnit)
    yield line_panel(face, [fleet.ACTIVE_RATIO], highest=1, limit=(limits.NEARLY_FULL, colors.RED))
    text = "Blocks of all pools by state. Much free while requests wait: the router, or a limit of the scheduler."
    face = graph_face(204, "Blocks by state", text, units.Short, span=12)
    yield colored(line_panel(face, [fleet.BLOCKS], stacked=True), colors.STATES)
    text = "Blocks that there are, by model. A step is an engine that came or went: see the engine cores by model."
    face = graph_face(205, "Capacity by model", text, units.Short, span=12)
    yield line_panel(face, [fleet.CAPACITY])
    text = "Blocks that nobody is entitled to, by model. One model alone: a defect of its engine's release; roll back."
    face = graph_face(206, "Leaked blocks by model", text, units.Short, span=12, height=FINDINGS_HEIGHT)
    yield line_panel(face, [fleet.LEAKED])
    text = "Open findings by kind. One kind in many engines: a defect of the release; roll back, with evidence saved."
    face = graph_face(207, "Findings in the fleet", text, units.Short, span=12, height=FINDINGS_HEIGHT)
    yield line_panel(face, [fleet.FINDINGS])


def _requests() -> Panels:
    text = "Requests by state. `waiting` that grows beside `running` that does not: the fleet is at its limit."
    yield _stack(301, "Requests in the fleet", text, units.Short, fleet.LIVE)
    text = "Requests that wait, by cause. `pool`: more engines; others: the scheduler's limits and quotas first."
    yield _stack(302, "Waiting in the fleet", text, units.Short, fleet.WAITING, colors.CAUSES)
    text = "Seconds waited per second over five minutes, by cause: how many waited. The greatest: see its limit first."
    yield _stack(303, "Waits in the fleet", text, units.Short, fleet.WAIT_SECONDS, colors.CAUSES)
    text = "Age of the oldest open wait by cause, dashed at 60 s. One that climbs alone: see *On call* for the engine."
    face = graph_face(304, "Oldest wait by cause", text, units.Seconds)
    yield colored(line_panel(face, [fleet.OLDEST], limit=(limits.OLDEST_WAIT_SECONDS, colors.RED)), colors.CAUSES)
    text = "Accepted requests as they end, over five minutes. `engine_error`, `out_of_memory`: see *On call*."
    title = "Ended in the fleet"
    yield _stack(305, title, text, units.RequestsPerSecond, fleet.ENDINGS, colors.BAD_ENDINGS)
    text = "Requests refused, over five minutes, by reason. `queue_full` in all models: add engines or throttle."
    yield _stack(306, "Rejections in the fleet", text, units.RequestsPerSecond, fleet.REJECTIONS)


def _service() -> Panels:
    text = (
        "95th percentile of the time to first token over five minutes, the target dashed (2.5 s). One model alone: "
        "look at its engines, not at the network."
    )
    face = graph_face(401, "Time to first token by model, P95", text, units.Seconds)
    yield line_panel(face, [fleet.TTFT], limit=(limits.TTFT_SECONDS, colors.ORANGE))
    text = "95th percentile of the time between tokens over five minutes. Rising: see the preemptions; admit fewer."
    yield _lines(402, "Time between tokens by model, P95", text, units.Seconds, fleet.TOKEN_GAP)
    text = (
        "Share of requests refused over five minutes, dashed at the alert's 5 %. See the reasons above for what to do."
    )
    face = graph_face(403, "Refused by model", text, units.PercentUnit)
    yield line_panel(face, [fleet.REFUSED_SHARE], limit=(limits.REFUSED, colors.RED))


def _work() -> Panels:
    text = "Tokens generated per second over five minutes. Falling while requests wait: see their verdicts above."
    yield _stack(501, "Generated by model", text, "suffix: tokens/s", fleet.GENERATED)
    text = (
        "Prompt tokens computed per second over five minutes. A step up, as of longer prompts: see whose blocks grow."
    )
    yield _stack(502, "Prompts by model", text, "suffix: tokens/s", fleet.PROMPTS)
    text = "Running requests that gave way, over five minutes. Lasting: pools too small for what is admitted."
    yield _lines(503, "Preemptions in the fleet", text, units.OpsPerSecond, fleet.PREEMPTIONS)


def _tenants() -> Panels:
    text = "Blocks of the ten tenants that hold most, everywhere. One with most of a full fleet: a quota."
    yield _stack(601, "Blocks of tenants", text, units.Short, fleet.TENANT_BLOCKS)
    text = "Requests ended per second, of the ten busiest tenants. One that multiplies retries in a loop: throttle it."
    yield _stack(602, "Requests of tenants", text, units.RequestsPerSecond, fleet.TENANT_REQUESTS)
    text = "Refusals per second, of the ten tenants refused most. One alone: its quota or its requests; all: capacity."
    yield _stack(603, "Refusals of tenants", text, units.RequestsPerSecond, fleet.TENANT_REJECTIONS)
    text = "Age of each tenant's oldest open wait, dashed at 60 s. One alone: its quota, weight or priority."
    face = graph_face(604, "Oldest waits of tenants", text, units.Seconds)
    yield line_panel(face, [fleet.TENANT_OLDEST], limit=(limits.OLDEST_WAIT_SECONDS, colors.RED))
    text = "Blocks held on average over five minutes by each tenant. Compare with what each has paid for."
    yield _stack(605, "Block-seconds of tenants", text, units.Short, fleet.TENANT_BLOCK_SECONDS)
    text = (
        "Cost per hour in the currency of `--price-per-hour`. No data without a price. Dear: look for longer "
        "contexts, or waits."
    )
    yield _stack(606, "Cost of tenants per hour", text, "suffix: /h", fleet.TENANT_COST)


def _on_call() -> builders.DashboardLink:
    return links.board(oncall.UID, "On call")


def _lines(number: int, title: str, text: str, unit: str, query: Query) -> Panel:
    return line_panel(graph_face(number, title, text, unit), [query])


def _stack(
    number: int, title: str, text: str, unit: str, query: Query, names: Mapping[str, str] | None = None
) -> Panel:
    return colored(line_panel(graph_face(number, title, text, unit), [query], stacked=True), names or {})
