"""The *On call* board: verdicts, waits, refusals, leaks, liveness and the scorecard, in this order.

Owns which panel stands where, its id, text and unit. Ids are stable: links and alerts refer to them.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders

from kvledger_dashboards import colors
from kvledger_dashboards.boards import pool, requests, shell
from kvledger_dashboards.boards.shell import Panels
from kvledger_dashboards.links import Places
from kvledger_dashboards.panels import CORES_HEIGHT, count_steps, stat_face, stat_panel
from kvledger_dashboards.parts import blocks, leaks, liveness, reasons, resources, scorecard, service, tenants, waits
from kvledger_dashboards.queries import verdicts

UID = "kvledger-oncall"
_VERDICT_TEXTS = {
    "healthy": "Engine cores that serve what arrives: nothing leaks, hangs or stalls, and nobody waits long. When "
    "there are fewer than you run, one of the others or no data has the rest.",
    "pool_bound": "Engine cores whose requests wait for blocks. The reason below says who holds them, and whether to "
    "add capacity, throttle or change the block policy.",
    "scheduler_bound": "Engine cores whose requests wait for a limit of the scheduler or of a tenant while blocks are "
    "free. The reason below names the limit; more capacity would stand idle.",
    "compute_bound": "Engine cores whose steps are the time while the pool has room. More blocks would not help; add "
    "engines or look at the accelerator.",
    "leaking": "Engine cores with blocks held by nobody entitled to them, or with a count that is off. See the leaks "
    "below for kind and size; `kvledger snapshot FILE --save` keeps the evidence, then restart the engine.",
    "stalled": "Engine cores whose steps complete and whose requests wait, with no token and no admission. See which "
    "cause they wait for; a leak that holds the pool is the usual reason.",
    "frozen": "Engine cores that have work and hold their lock while the heartbeat stands still: hung, or stopped. "
    "Take the stack of the core process, then restart it.",
    "unknown": "Engine cores about which the ledger cannot say: ended, or not readable to the end. Unknown is not "
    "healthy. See *Engines down* and the log of the engine.",
}


def board(places: Places) -> builders.Dashboard:
    """The whole board, ready to be encoded."""
    rows = {
        "Verdict": _verdicts(),
        "Why": iter((reasons.of_each(201), reasons.shares(202), reasons.over_time(203))),
        "Pool | scheduler | compute": resources.panels(301, pool_board=pool.UID, requests_board=requests.UID),
        "Waits": _waits(),
        "Requests": iter((service.REJECTIONS.at(501), service.ENDINGS.at(502), service.FIRST_TOKEN.at(503))),
        "Leaks": _leaks(),
        "Tenants": iter((tenants.BLOCKS.at(701, span=12), tenants.REJECTIONS.at(702, span=12))),
        "Liveness": _liveness(),
        "Scorecard": scorecard.panels(901),
    }
    text = "Is an engine in trouble, what kind of trouble, and whose. Read it from the top."
    return shell.board(UID, "On call", text, rows, places)


def _verdicts() -> Panels:
    for number, (word, query) in enumerate(verdicts.VERDICTS.items(), start=101):
        face = stat_face(number, word.capitalize().replace("_", " "), _VERDICT_TEXTS[word])
        yield stat_panel(face, [query], steps_of=count_steps(colors.VERDICTS[word]))
    yield liveness.down(109, span=6)
    yield leaks.open_findings(110)
    yield blocks.exhaustion(111, span=6)
    yield liveness.oldest_sample(112, span=6)


def _waits() -> Panels:
    yield from (waits.BY_CAUSE.at(401), waits.NOW_BY_CAUSE.at(402), waits.OLDEST.at(403))
    yield from (waits.P95.at(404, span=12, height=CORES_HEIGHT), waits.NEVER_FIT.at(405, span=12, height=CORES_HEIGHT))


def _leaks() -> Panels:
    yield leaks.LEAKED.at(601, span=12, height=leaks.HEIGHT)
    yield leaks.FINDINGS.at(602, span=12, height=leaks.HEIGHT)
    yield from (
        leaks.FINISHING.at(603, span=12, height=CORES_HEIGHT),
        leaks.NOTES.at(604, span=12, height=CORES_HEIGHT),
    )


def _liveness() -> Panels:
    for number, graph in enumerate((liveness.HEARTBEAT, liveness.STEPS, liveness.SAMPLE_AGE), start=801):
        yield graph.at(number, height=CORES_HEIGHT)
