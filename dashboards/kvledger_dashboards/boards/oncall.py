"""The *On call* board: verdicts, scorecard, pool, waits, refusals, leaks, tenants, liveness, in this order.

Owns which panel stands where, its id, text and unit. Ids are stable: links and alerts refer to them.
"""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import units

from kvledger_dashboards import panels, queries
from kvledger_dashboards.boards import scorecard, shell
from kvledger_dashboards.panels import Face, line_panel, stat_face, stat_panel

UID = "kvledger-oncall"
Panels = Iterator[shell.Panel]

VERDICT_COLORS = {
    "healthy": panels.GREEN,
    "leaking": panels.RED,
    "stalled": panels.ORANGE,
    "frozen": panels.DARK_RED,
    "unknown": panels.GREY,
}
_VERDICT_TEXTS = {
    "healthy": "Engine cores in which nothing leaks, hangs or stalls. This does not say that the pool is large enough: "
    "see the pool and the waits. When there are fewer than you run, one of the others or no data has the rest.",
    "leaking": "Engine cores with blocks held by nobody entitled to them, or with a count that is off. See the leaks "
    "below for kind and size; `kvledger snapshot FILE --save` keeps the evidence, then restart the engine.",
    "stalled": "Engine cores whose steps complete and whose requests wait, with no token and no admission. See which "
    "cause they wait for; a leak that holds the pool is the usual reason.",
    "frozen": "Engine cores that have work and hold their lock while the heartbeat stands still: hung, or stopped. "
    "Take the stack of the core process, then restart it.",
    "unknown": "Engine cores about which the ledger cannot say: ended, or not readable to the end. Unknown is not "
    "healthy. See *Engines down* and the log of the engine.",
}
STATE_COLORS = {"active": "#3274D9", "cached": "#8AB8FF", "free": "#73BF69"}
CAUSE_COLORS = {
    "pool": panels.RED,
    "tenant_quota": panels.PURPLE,
    "fair_share": "#B877D9",
    "class_budget": "#5794F2",
    "batch_slots": panels.ORANGE,
    "token_budget": "#F2CC0C",
    "step": "#73BF69",
    "preemption": "#FF7383",
    "paused": panels.GREY,
    "deferred": "#8AB8FF",
}
LEAKS_HEIGHT = 12
"""The legend has a line for every kind of finding and every invariant; all of them have to be seen."""
BAD_ENDINGS = {"pool_exhausted": panels.RED, "out_of_memory": panels.DARK_RED, "engine_error": panels.PURPLE}


def board() -> builders.Dashboard:
    """The whole board, ready to be encoded."""
    rows = {
        "Findings and verdict": _verdicts(),
        "Scorecard": scorecard.panels(),
        "Pool": _pool(),
        "Waits": _waits(),
        "Requests": _requests(),
        "Leaks": _leaks(),
        "Tenants": _tenants(),
        "Liveness": _liveness(),
    }
    text = "Is an engine in trouble, what kind of trouble, and whose. Read it from the top."
    return shell.board(UID, "On call", text, rows)


def _graph_face(number: int, title: str, text: str, unit: str, *, span: int = 8, height: int = 8) -> Face:
    return Face(id=number, title=title, description=text, unit=unit, span=span, height=10 if span > 12 else height)


def _verdicts() -> Panels:
    for number, (word, query) in enumerate(queries.VERDICTS.items(), start=101):
        face = stat_face(number, word.capitalize(), _VERDICT_TEXTS[word])
        yield stat_panel(face, [query], colors=panels.count_steps(VERDICT_COLORS[word]))
    text = (
        "Engine cores that are gone without a clean stop: killed or crashed. "
        "Read the end of the engine's log and the kernel's for an OOM kill."
    )
    face = stat_face(106, "Engines down", text)
    yield stat_panel(face, [queries.ENGINES_DOWN], colors=panels.count_steps(panels.RED))
    text = "Open findings of all kinds. When it is not 0, go to the leaks row, which shows them by kind."
    face = stat_face(107, "Open findings", text)
    yield stat_panel(face, [queries.OPEN_FINDINGS], colors=panels.count_steps(panels.RED))
    text = (
        "Age of the oldest sample behind this board. Above a few seconds, what you see is the past: look at the agent."
    )
    face = stat_face(108, "Oldest sample", text, units.Seconds)
    yield stat_panel(face, [queries.OLDEST_SAMPLE], colors=((None, panels.QUIET), (5, panels.ORANGE)))
    text = "The verdict of each engine core by name. One that is missing here is not watched, or its agent is gone."
    face = stat_face(109, "Verdict of each engine", text, span=24)
    yield panels.name_panel(face, queries.VERDICT_OF_EACH, VERDICT_COLORS)


def _pool() -> Panels:
    text = (
        "Blocks by state, stacked to the capacity. Active over the alert watermark: little is left for bursts; "
        "over the admission watermark nothing is admitted. Logical over active is what sharing saves. Active that "
        "stays high without running requests is a leak; otherwise scale out or throttle."
    )
    stack = [*queries.BLOCKS, queries.CAPACITY, queries.ALERT_WATERMARK, queries.ADMISSION_WATERMARK]
    face = _graph_face(301, "Blocks, stacked to capacity", text, units.Short, span=16)
    panel = line_panel(face, [*stack, queries.LOGICAL, queries.SHARED], stacked=True)
    panel = panels.colored(panel, STATE_COLORS)
    panel = panels.over(panel, "capacity", panels.GREY, dashed=True)
    panel = panels.over(panel, "alert watermark", panels.RED, dashed=True)
    panel = panels.over(panel, "admission watermark", panels.ORANGE, dashed=True)
    panel = panels.over(panel, "logical", "#B877D9", dashed=False)
    yield panels.over(panel, "shared", "#F2CC0C", dashed=False)
    text = (
        "Active blocks of each engine core as a share of its capacity, with the lowest alert watermark. One full "
        "engine among empty ones: look at the router before adding engines."
    )
    face = Face(
        id=302, title="Active share of each engine", description=text, unit=units.PercentUnit, span=8, height=10
    )
    panel = line_panel(face, [queries.ACTIVE_SHARE, queries.LOWEST_ALERT_WATERMARK], highest=1)
    yield panels.over(panel, "alert watermark", panels.RED, dashed=True)


def _waits() -> Panels:
    text = (
        "Seconds waited per second by cause, as waits end: how many requests waited on average, and for what. "
        "`pool`: too few blocks. `batch_slots`, `token_budget`: the scheduler's limits. `step` alone is healthy."
    )
    face = _graph_face(401, "Wait by cause", text, units.Short)
    yield panels.colored(line_panel(face, [queries.WAIT_SECONDS], stacked=True), CAUSE_COLORS)
    text = (
        "Requests that wait now, by the one cause each waits for. A queue that grows under `pool` needs capacity "
        "or throttling; under `batch_slots` a higher `--max-num-seqs`."
    )
    face = _graph_face(402, "Waiting now by cause", text, units.Short)
    yield panels.colored(line_panel(face, [queries.WAITING_NOW], stacked=True), CAUSE_COLORS)
    text = (
        "Age of the oldest wait still open. A line that climbs at one second per second is a request that nothing "
        "serves: see the verdict, then `kvledger snapshot` for who it is."
    )
    face = _graph_face(403, "Oldest open wait", text, units.Seconds)
    yield panels.colored(line_panel(face, [queries.OLDEST_WAIT]), CAUSE_COLORS)


def _requests() -> Panels:
    text = (
        "Requests refused before they held a block. `queue_full`: throttle or scale out. `exceeds_pool`, "
        "`context_too_long`: the client asks for more than this engine can ever do. `draining`: it is shutting "
        "down."
    )
    yield line_panel(
        _graph_face(501, "Rejections by reason", text, units.RequestsPerSecond), [queries.REJECTIONS], stacked=True
    )
    text = (
        "Accepted requests as they end. `pool_exhausted`, `out_of_memory` and `engine_error` are failures of ours; "
        "many `cancelled` means that clients give up: look at TTFT."
    )
    panel = line_panel(
        _graph_face(502, "Ended by reason", text, units.RequestsPerSecond), [queries.ENDINGS], stacked=True
    )
    yield panels.colored(panel, BAD_ENDINGS)
    text = (
        "Arrival to first token of requests that got one. Rising with waits for the pool: capacity. Rising without "
        "waits: the steps are slow, see the liveness row."
    )
    yield line_panel(_graph_face(503, "Time to first token", text, units.Seconds), queries.TTFT)


def _leaks() -> Panels:
    text = (
        "Blocks whose references exceed live tables and pins beyond the grace. Never given back until the engine "
        "restarts; growing: restart before the pool is gone, with the evidence saved."
    )
    face = _graph_face(601, "Leaked blocks", text, units.Short, span=12, height=LEAKS_HEIGHT)
    yield line_panel(face, [queries.LEAKED])
    text = (
        "Open findings by what the ledger shows, and counts that are off. docs/findings.md says which defects show "
        "as which kind; the agent's `/v1/engines/ENGINE/findings` names blocks and owners."
    )
    face = _graph_face(602, "Findings by kind", text, units.Short, span=12, height=LEAKS_HEIGHT)
    yield line_panel(face, [queries.FINDINGS, queries.VIOLATIONS])


def _tenants() -> Panels:
    text = (
        "Active blocks of the ten tenants that hold most. One tenant with most of a full pool: throttle it, or "
        "give it a quota."
    )
    yield line_panel(
        _graph_face(701, "Blocks by tenant", text, units.Short, span=12), [queries.TENANT_BLOCKS], stacked=True
    )
    text = (
        "Refusals of the ten tenants that are refused most. One tenant alone: its requests or its rate are wrong. "
        "All of them: the pool is short."
    )
    face = _graph_face(702, "Rejections by tenant", text, units.RequestsPerSecond, span=12)
    yield line_panel(face, [queries.TENANT_REJECTIONS], stacked=True)


def _liveness() -> Panels:
    text = (
        "Time since the last heartbeat of engines that have work; an idle engine runs no code and has no line. A "
        "line that climbs is a frozen or dead engine."
    )
    yield line_panel(_graph_face(801, "Heartbeat age", text, units.Seconds), [queries.HEARTBEAT_AGE])
    text = (
        "Engine steps per second. Zero with work to do: stalled or frozen. Falling under the same load: steps "
        "became slower, look at the accelerator."
    )
    yield line_panel(_graph_face(802, "Steps", text, units.OpsPerSecond), [queries.STEPS])
    text = (
        "Age of the last good sample of each ledger. Climbing: the agent hangs, or that ledger cannot be read; the "
        "agent's log says why."
    )
    yield line_panel(_graph_face(803, "Age of the agent's samples", text, units.Seconds), [queries.SAMPLE_AGE])
