"""The *Pool* board: what the blocks are used for, what is left, what runs it down, what sharing brings.

Owns which panel stands where, its id, text and unit. Ids are stable: links and alerts refer to them.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import units

from kvledger_dashboards import colors, limits
from kvledger_dashboards.boards import shell
from kvledger_dashboards.boards.shell import Panels
from kvledger_dashboards.links import Places
from kvledger_dashboards.panels import (
    CORES_HEIGHT,
    above,
    below,
    colored,
    cores_face,
    count_steps,
    graph_face,
    line_panel,
    over,
    stat_face,
    stat_panel,
)
from kvledger_dashboards.parts import blocks
from kvledger_dashboards.queries import pool

UID = "kvledger-pool"


def board(places: Places) -> builders.Dashboard:
    """The whole board, ready to be encoded."""
    rows = {
        "Now": _now(),
        "Use": _use(),
        "What is left": _headroom(),
        "Waste and pins": _waste(),
        "Churn": _churn(),
        "Time": _time(),
        "Sharing": _sharing(),
        "Memory": _memory(),
    }
    text = "Is the pool too small, badly used, or held by somebody? What the blocks are for, and what they cost to run."
    return shell.board(UID, "Pool", text, rows, places)


def _now() -> Panels:
    text = "Active share of the fullest pool. Orange: at the usual alert watermark; red: full. See who waits for it."
    steps = above(limits.NEARLY_FULL, colors.ORANGE, (limits.FULL, colors.RED))
    yield stat_panel(stat_face(101, "Fullest pool", text, units.PercentUnit), [pool.FULLEST], steps_of=steps)
    text = (
        "Highest share of a pool that was active at once in the last minute, spikes between samples included. High "
        "with a low share now: bursts; leave them room, or smooth the arrivals."
    )
    face = stat_face(102, "Highest peak", text, units.PercentUnit)
    yield stat_panel(face, [pool.FULLEST_PEAK], steps_of=steps)
    text = (
        "Free and cached blocks less what admitted requests may still need, in the pool with least. Below 0, running "
        "requests will preempt each other if they run to their end: admit fewer, or add capacity."
    )
    face = stat_face(103, "Least headroom", text, units.Short)
    yield stat_panel(face, [pool.LEAST_HEADROOM], steps_of=below(0, colors.ORANGE))
    text = "Blocks that admitted requests may still need up to their max_tokens. No number is bad: see the headroom."
    yield stat_panel(stat_face(104, "Committed", text, units.Short), [pool.COMMITTED])
    yield blocks.exhaustion(105)
    text = (
        "Blocks held by nobody entitled to them. Any is too many: *On call* shows whose; restart with evidence saved."
    )
    yield stat_panel(stat_face(106, "Leaked", text, units.Short), [pool.LEAKED_NOW], steps_of=count_steps(colors.RED))
    text = "Blocks held by something declared that is no live table. Many for long: see *Pinned blocks* for what."
    yield stat_panel(stat_face(107, "Pinned", text, units.Short), [pool.PINNED_NOW])
    text = "Blocks that sharing makes needless now: logical less active. 0 where prefixes should be shared: see hits."
    yield stat_panel(stat_face(108, "Saved by sharing", text, units.Short), [pool.SAVED_NOW])


def _use() -> Panels:
    yield blocks.stack(201)
    yield blocks.active_share(202, height=10)


def _headroom() -> Panels:
    text = (
        "Active blocks, the most that were active within the last minute, and what they become if every admitted "
        "request runs to its max_tokens. Committed over capacity is normal; far over it with preemptions: admit fewer."
    )
    face = cores_face(301, "Active, peak and committed", text, units.Short, span=12)
    panel = line_panel(face, [pool.ACTIVE_NOW, pool.PEAK, pool.PROMISED, pool.CAPACITY])
    panel = colored(
        panel, {pool.ACTIVE: colors.BLUE, pool.PEAK.legend: colors.YELLOW, pool.PROMISED.legend: colors.LILAC}
    )
    yield over(panel, "capacity", colors.GREY, dashed=True)
    text = (
        "Free and cached less committed of each engine core. Below the dashed line (0), running requests will preempt "
        "each other if they run to their end. Falling without new requests: see *Leaked* and the findings."
    )
    face = cores_face(302, "Headroom", text, units.Short, span=12)
    yield line_panel(face, [pool.HEADROOM], lowest=None, limit=(0, colors.RED))


def _waste() -> Panels:
    text = (
        "Slots of held blocks that hold no token, as a share. Above the dashed line (25 %) the block size is large for "
        "these contexts: a smaller one wastes less and costs more bookkeeping."
    )
    face = cores_face(401, "Tail waste", text, units.PercentUnit, span=24)
    yield line_panel(face, [pool.TAIL_WASTE], highest=1, limit=(limits.TAIL_WASTE, colors.ORANGE))
    text = (
        "Longest run of adjacent free ids of each engine core. Of no consequence to a paged engine; what a contiguous "
        "allocator, or a transfer of whole runs, could still get."
    )
    yield line_panel(cores_face(402, "Longest free run", text, units.Short, span=12), [pool.LONGEST_RUN])
    text = (
        "Blocks held by what is declared and no live table. `copy_on_write` for one step, `deferred_free` and "
        "`transfer` until it is over, `connector` as long as it likes. Climbing: its holder does not let go; see "
        "`pin_overdue`."
    )
    yield line_panel(cores_face(403, "Pinned blocks", text, units.Short, span=12), [pool.PINNED])


def _churn() -> Panels:
    text = (
        "Cached blocks recycled per second. High with a falling hit rate: the cache is too small for the prefixes; try "
        "another `--eviction`, or more blocks."
    )
    yield line_panel(cores_face(501, "Evictions", text, "suffix: blocks/s"), [pool.EVICTIONS])
    text = (
        "Shared blocks copied because somebody was about to write. Many beside few saved blocks: see `kvledger "
        "sharing` for whether it pays."
    )
    yield line_panel(cores_face(502, "Copies on write", text, "suffix: blocks/s"), [pool.COPIES])
    text = "Bytes of these copies. They go through the accelerator's memory: near its bandwidth they slow every step."
    yield line_panel(cores_face(503, "Copied on write", text, units.BytesPerSecondIEC), [pool.COPIED_BYTES])
    yield blocks.PREEMPTIONS.at(504, span=12)
    text = (
        "What became of the blocks of preempted requests. `kept` is found again, `recycled` is computed again, "
        "`swapped` comes back from host memory. Much `recycled`: admit fewer, or try `--preemption swap`."
    )
    yield line_panel(
        graph_face(505, "Preempted blocks by fate", text, "suffix: blocks/s", span=12), [pool.PREEMPTED_BLOCKS]
    )
    yield blocks.FAILURES.at(506, span=12, height=CORES_HEIGHT)
    yield blocks.SWAPPED.at(507, span=12, height=CORES_HEIGHT)


def _time() -> Panels:
    yield blocks.ALLOCATION.at(601)
    text = (
        "End of a request to its last block given back, 95th percentile by cause. Past the dashed line (1 s) cancelled "
        "requests keep blocks that others wait for: look at long steps; docs/cancellation.md says what is normal."
    )
    face = graph_face(602, "Release time by cause, P95", text, units.Seconds)
    yield line_panel(face, [pool.RELEASE], limit=(limits.RELEASE_P95_SECONDS, colors.ORANGE))
    text = (
        "How long references to blocks are held, private and shared. Shared ones that live much longer are prefixes "
        "worth keeping; private ones that grow longer: requests got longer, or nobody lets go."
    )
    panel = line_panel(graph_face(603, "Reference lifetime", text, units.Seconds), pool.LIFETIME)
    names = ("private P50", "private P95", "shared P50", "shared P95")
    yield colored(panel, dict(zip(names, (colors.LIGHT_BLUE, colors.BLUE, colors.YELLOW, colors.ORANGE), strict=True)))


def _sharing() -> Panels:
    text = (
        "Prompt tokens found in the cache, as a share of those looked up. A fall: see the evictions for whether they "
        "took them; otherwise ask who changed the beginning of prompts, a salt or a tenant."
    )
    face = cores_face(701, "Prefix hit rate", text, units.PercentUnit)
    yield line_panel(face, [pool.HIT_RATIO], highest=1)
    text = "Logical less active blocks of each engine core: what would be needed on top without sharing."
    yield line_panel(cores_face(702, "Blocks saved by sharing", text, units.Short), [pool.SAVED])
    text = (
        "Seconds per second spent on looking prefixes up, counting references and copying. Above what `kvledger "
        "sharing` says is saved, switch prefix caching off for that load."
    )
    yield line_panel(cores_face(703, "Cost of sharing", text, units.PercentUnit), [pool.SHARING_OVERHEAD])


def _memory() -> Panels:
    text = (
        "Memory that the cache was planned in, reserve included, of all engine cores of a model. Compare with the card."
    )
    yield stat_panel(stat_face(801, "KV budget", text, units.BytesIEC, span=8), [pool.BUDGET])
    text = (
        "Of it, what is not blocks: weights, activations, buffers, metadata, as far as the engine knows. 0 means that "
        "nobody subtracts them: give the engine its reserve, or plan with less concurrency."
    )
    yield stat_panel(stat_face(802, "Reserve", text, units.BytesIEC, span=8), [pool.RESERVE])
    text = "Bytes of one block, by cache group. If it is not what the geometry gives, dtype or parallelism is another."
    yield stat_panel(stat_face(803, "Block bytes", text, units.BytesIEC, span=8), [pool.BLOCK_BYTES])
