"""The scorecard row: the seven figures of `kvledger scorecard`, which the agent computes for both. Owns their texts."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.builders import stat
from grafana_foundation_sdk.models import units

from kvledger_dashboards.panels import stat_face, stat_panel
from kvledger_dashboards.queries import scorecard as queries

COST_UNIT = "suffix: /req"
"""A unit of our own: nobody tells the board which currency the price is in."""


def panels(first: int) -> Iterator[stat.Panel]:
    """The row's seven panels: of each model the figures of its worst engine core, without a colour that would judge."""
    yield from _sizes(first)
    yield from _service(first + 4)


def _sizes(first: int) -> Iterator[stat.Panel]:
    text = (
        "Cache bytes one token takes, over all layers and groups. If it is not what the model's geometry gives, the "
        "engine runs another model, dtype or parallelism than you think."
    )
    yield stat_panel(stat_face(first, "Bytes per token", text, units.BytesIEC), [queries.BYTES_PER_TOKEN])
    text = (
        "Token slots in a block. Large ones waste more in each request's tail, small ones cost more bookkeeping: see "
        "*Tail waste* on *Pool*."
    )
    yield stat_panel(stat_face(first + 1, "Block size", text, units.Short), [queries.BLOCK_SIZE])
    text = (
        "Most blocks active at once within the last minute, in the fullest pool; spikes between samples are counted. "
        "Near the capacity: see the waits for the pool."
    )
    yield stat_panel(stat_face(first + 2, "Peak active blocks", text, units.Short), [queries.PEAK_ACTIVE])
    text = (
        "Requests that one engine's KV budget holds at once, its reserve (weights, activations, communication buffers, "
        "allocator metadata) subtracted, at the P50, P95 and P99 length of the requests that ended, beside the most "
        "that ran within the last minute. No data before 20 have ended. `kvledger scorecard` itemises the reserve. "
        "When what was reached is near P95, add engines or shorten contexts."
    )
    yield stat_panel(
        stat_face(first + 3, "Maximum concurrency", text, units.Short, span=6), queries.CONCURRENCY
    ).decimals(1)


def _service(first: int) -> Iterator[stat.Panel]:
    text = (
        "Share of requests refused at the door, of all refused or ended, since the engine's counters began, its "
        "earlier starts included; of the worst engine. No data before the first. It moves slowly: see *Rejections by "
        "reason* for the last minutes."
    )
    yield stat_panel(stat_face(first, "Rejection rate", text, units.PercentUnit), [queries.REJECTION_RATIO])
    text = (
        "Arrival to first token, 95th percentile since the engine's counters began, its earlier starts included; of "
        "the worst engine; between which ends it lies for certain, `kvledger scorecard` says. No data before the first "
        "token. It moves slowly: see *Time to first token* for the last minutes."
    )
    yield stat_panel(stat_face(first + 1, "TTFT P95", text, units.Seconds), [queries.TTFT_P95])
    text = (
        "Cost of block-seconds per ended request since the engine's counters began, its earlier starts included, in "
        "the currency of the agent's `--price-per-hour`; of the dearest engine. No data without a price. When it "
        "climbs, requests hold blocks longer or share fewer."
    )
    yield stat_panel(stat_face(first + 2, "Cost per request", text, COST_UNIT), [queries.COST_PER_REQUEST])
