"""The *Requests, tenants, cost* board: what clients see, who of them holds and pays what.

Owns which panel stands where, its id, text and unit. Ids are stable: links and alerts refer to them.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import units

from kvledger_dashboards import colors, limits
from kvledger_dashboards.boards import shell
from kvledger_dashboards.boards.shell import Panels
from kvledger_dashboards.links import Places
from kvledger_dashboards.panels import colored, graph_face, line_panel
from kvledger_dashboards.parts import scorecard, service, tenants, waits
from kvledger_dashboards.queries import service as queries
from kvledger_dashboards.queries import tenants as tenant_queries

UID = "kvledger-requests"
PER_HOUR, PER_REQUEST = "suffix: /h", scorecard.COST_UNIT
"""Units of our own: nobody tells the board which currency the price is in."""
LIVE_COLORS = {"waiting": colors.ORANGE, "running": colors.LIGHT_GREEN, "finishing": colors.GREY}
LIVE_COLORS |= {"preempted": "#FF7383", "swapped": colors.PURPLE}


def board(places: Places) -> builders.Dashboard:
    """The whole board, ready to be encoded."""
    rows = {
        "Requests": _requests(),
        "Latency": _latency(),
        "Waits": _waits(),
        "Sizes": _sizes(),
        "Tenants": _tenants(),
        "Cost": _cost(),
        "Scorecard": scorecard.panels(701),
    }
    text = (
        "What clients get and how long it takes, which tenants hold the pool, wait or are refused, and what it costs."
    )
    return shell.board(UID, "Requests, tenants, cost", text, rows, places)


def _requests() -> Panels:
    text = (
        "Requests by state. Many `waiting` beside few `running`: see the waits for why. `preempted` and `swapped` are "
        "work put off; `finishing` have ended and still hold blocks: more than a few is a slow release."
    )
    face = graph_face(101, "Requests by state", text, units.Short)
    yield colored(line_panel(face, [queries.LIVE], stacked=True), LIVE_COLORS)
    text = (
        "Live requests by class. If `batch` fills the engine while `interactive` waits, give the classes budgets "
        "(docs/engine.md, tenants and classes)."
    )
    yield line_panel(graph_face(102, "Requests by class", text, units.Short), [queries.LIVE_BY_CLASS], stacked=True)
    text = (
        "Requests given up by clients: `disconnect` dropped the connection, `api` asked for it. Many of either: "
        "clients do not get their first token in time."
    )
    face = graph_face(103, "Cancellations by cause", text, units.RequestsPerSecond)
    yield line_panel(face, [queries.CANCELLATIONS], stacked=True)
    yield service.REJECTIONS.at(104)
    yield service.ENDINGS.at(105)
    text = (
        "Tokens per second: generated, of prompts, and computed again after preemptions. Computed again near "
        "generated: the engine does its work twice, admit fewer requests."
    )
    panel = line_panel(graph_face(106, "Tokens", text, "suffix: tokens/s"), queries.TOKENS)
    names = {"generated": colors.LIGHT_GREEN, "prompt": colors.BLUE, "computed again": colors.RED}
    yield colored(panel, names)


def _latency() -> Panels:
    yield service.FIRST_TOKEN.at(201)
    text = (
        "95th percentile of the time to first token of each class, the target dashed (2.5 s). Only one class slow: "
        "its budget or its turn; all of them: the pool or the steps."
    )
    face = graph_face(202, "Time to first token by class, P95", text, units.Seconds)
    yield line_panel(face, [queries.TTFT_BY_CLASS], limit=(limits.TTFT_SECONDS, colors.ORANGE))
    text = (
        "Arrival to first block held: the wait for a place. The rest of the time to first token is compute. High here: "
        "capacity or a limit of the scheduler; low here and a slow first token: the steps."
    )
    yield line_panel(graph_face(203, "Time to first block", text, units.Seconds), queries.TTFB)
    text = (
        "Time between two tokens of one request. Rising with the number running: lower `--max-num-seqs`; peaks alone: "
        "see preemptions, or limit the prompt tokens of a step."
    )
    yield line_panel(graph_face(204, "Time between tokens", text, units.Seconds), queries.TOKEN_GAP)
    text = (
        "Arrival to end, 95th percentile by how it ended, requests that never started included. `cancelled` far below "
        "the others says how patient clients are."
    )
    yield line_panel(graph_face(205, "Request duration by end, P95", text, units.Seconds), [queries.DURATION])
    text = (
        "Share of requests refused, of all that were refused or ended. Past the dashed line (5 %) clients notice: the "
        "reasons above say whether to throttle, to scale out, or to tell a client that it asks for too much."
    )
    face = graph_face(206, "Refused", text, units.PercentUnit)
    yield line_panel(face, [queries.REFUSED_SHARE], limit=(limits.REFUSED, colors.RED))


def _waits() -> Panels:
    yield waits.BY_CAUSE.at(301)
    yield waits.NOW_BY_CAUSE.at(302)
    yield waits.P95.at(303)


def _sizes() -> Panels:
    text = (
        "Tokens of requests that ended, 95th percentile by kind. Growing: fewer fit at once; compare with the maximum "
        "concurrency below before you promise longer contexts."
    )
    yield line_panel(graph_face(401, "Tokens of a request, P95", text, units.Short), [queries.LENGTHS])
    text = (
        "Most blocks that a request held at once. P99 near the capacity: one request can fill the pool; bound its "
        "context (`--max-model-len`, a tenant's `max_context`)."
    )
    yield line_panel(graph_face(402, "Peak blocks of a request", text, units.Short), queries.PEAK_BLOCKS)
    text = (
        "Tokens, prompt and output, of the requests that ended, at the percentiles with which the maximum concurrency "
        "is computed; the longest of all engine cores. Plan with P95 and P99; far apart: an engine of its own for the "
        "long ones."
    )
    yield line_panel(graph_face(403, "Lengths to plan with", text, units.Short), [queries.PLANNED_LENGTHS])


def _tenants() -> Panels:
    yield tenants.BLOCKS.at(501, span=12)
    text = (
        "Blocks of each tenant as a share of its quota, in the engine core where it is highest; tenants without one "
        "have no line. Past the dashed line (95 %) its requests wait for `tenant_quota`: raise the quota only if the "
        "pool has room."
    )
    face = graph_face(502, "Quota used by tenant", text, units.PercentUnit, span=12)
    yield line_panel(face, [tenant_queries.QUOTA_SHARE], limit=(limits.QUOTA_USED, colors.ORANGE))
    yield tenants.REJECTIONS.at(503, span=12)
    text = (
        "Age of each tenant's oldest open wait, of the ten that wait longest, dashed at 60 s. "
        "One far above the others: its quota, its weight or its priority; all alike: the engine."
    )
    face = graph_face(504, "Oldest wait by tenant", text, units.Seconds, span=12)
    yield line_panel(face, [tenant_queries.OLDEST_WAIT], limit=(limits.OLDEST_WAIT_SECONDS, colors.RED))
    text = (
        "Requests that ended per second, of the ten busiest tenants. One that multiplies: see whether its client "
        "retries in a loop, and throttle it."
    )
    face = graph_face(505, "Ended by tenant", text, units.RequestsPerSecond, span=12)
    yield line_panel(face, [tenant_queries.ENDED], stacked=True)
    text = (
        "Requests of a tenant's P95 length that fit at once, within its quota, of the ten tenants with fewest. Below "
        "what it sends at once: more quota, or shorter contexts."
    )
    face = graph_face(506, "Concurrency a tenant can reach", text, units.Short, span=12)
    yield line_panel(face, [tenant_queries.CONCURRENCY])


def _cost() -> Panels:
    text = (
        "Block-seconds per second, which is blocks held on average, charged to each tenant, of the ten with most. What "
        "a bill is made of; compare with what each has paid for."
    )
    face = graph_face(601, "Block-seconds by tenant", text, units.Short)
    yield line_panel(face, [tenant_queries.BLOCK_SECONDS], stacked=True)
    text = (
        "Cost of these block-seconds per hour, in the currency of the agent's `--price-per-hour`. No data without a "
        "price. Far below the price: the pool stands empty, fewer engines would do."
    )
    face = graph_face(602, "Cost per hour by tenant", text, PER_HOUR)
    yield line_panel(face, [tenant_queries.COST_PER_HOUR], stacked=True)
    text = (
        "Cost per ended request of each tenant. Rising: its requests hold blocks longer, wait while they hold them, or "
        "share fewer prefixes."
    )
    yield line_panel(
        graph_face(603, "Cost per request by tenant", text, PER_REQUEST), [tenant_queries.COST_PER_REQUEST]
    )
