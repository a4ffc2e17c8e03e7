"""The sharing account: what sharing prefixes cost, held against what it made needless, by prefix. Pure.

The ledger's numbers and one division: seconds of prefill saved are tokens not computed again × seconds that a prompt
token took in this engine. Where that was not measured, what was saved in time is unknown, and so is the net.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.limits import Limits
from kvledger.statsview import StatsView


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixAccount:
    """One prefix, many, or all of them; since this engine's start.

    `prefix` is the salted key of the first block, None for several. `queried_tokens` were looked up at admissions,
    `hit_tokens` found; `forks` are sequences beyond the first of a request, which began with `forked_tokens` of its.
    Both kinds were neither computed, nor written, nor held a second time, which is `saved_bytes`.
    `overhead_seconds` is the sum of the four before it; `net_seconds` is below zero where sharing took longer than it
    saved.
    """

    prefix: str | None
    admissions: int
    hits: int
    queried_tokens: int
    hit_tokens: int
    forks: int
    forked_tokens: int
    saved_bytes: int | None
    copied_blocks: int
    copied_bytes: int | None
    lookup_seconds: float
    reference_seconds: float
    index_seconds: float
    copy_seconds: float
    overhead_seconds: float
    saved_seconds: float | None
    net_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingView:
    """The account of one engine: prefixes by what they saved, all others together, and the sum of both.

    `seconds_per_prompt_token` is measured in steps that are mostly prompts; None = there was none yet.
    """

    seconds_per_prompt_token: float | None
    prefixes: tuple[PrefixAccount, ...]
    others: PrefixAccount
    total: PrefixAccount


@dataclass(frozen=True, slots=True)
class _Sizes:
    token_bytes: int
    block_bytes: int
    seconds_per_token: float | None


_PARTS = ("lookup_seconds", "reference_seconds", "index_seconds", "copy_seconds")


def sharing_view(rows: NDArray[Any], stats: StatsView, limits: Limits) -> SharingView | None:
    """The account behind a ledger's rows (dtype `layout.PREFIX_ACCOUNT`); None where its writer keeps none."""
    if "sharing_overhead_seconds_total" in limits.unreported:
        return None
    pace = seconds_per_prompt_token(stats)
    sizes = _Sizes(
        token_bytes=sum(group.bytes_per_token for group in limits.groups),
        block_bytes=limits.groups[0].block_bytes,
        seconds_per_token=pace,
    )
    named = rows[:-1][rows["key"][:-1] != 0]
    order = np.lexsort((named["queried_tokens"], named["hit_tokens"] + named["forked_tokens"]))[::-1]
    return SharingView(
        seconds_per_prompt_token=pace,
        prefixes=tuple(_account(named[at : at + 1], sizes, f"{int(named['key'][at]):016x}") for at in order.tolist()),
        others=_account(rows[-1:], sizes, None),
        total=_account(rows, sizes, None),
    )


def seconds_per_prompt_token(stats: StatsView) -> float | None:
    """What a prompt token took on average in steps that were mostly prompts; None before the first of them."""
    seconds, tokens = (stats.gauge(f"prefill_{what}") for what in ("seconds", "tokens"))
    return None if not tokens or seconds is None or seconds <= 0 else seconds / tokens


def _account(rows: NDArray[Any], sizes: _Sizes, prefix: str | None) -> PrefixAccount:
    def whole(name: str) -> int:
        return int(rows[name].sum())

    lookup, reference, index, copy = (float(rows[name].sum()) for name in _PARTS)
    overhead, hit, copied = lookup + reference + index + copy, whole("hit_tokens"), whole("copied_blocks")
    shared = hit + whole("forked_tokens")
    saved = None if sizes.seconds_per_token is None else shared * sizes.seconds_per_token
    return PrefixAccount(
        prefix=prefix,
        admissions=whole("admissions"),
        hits=whole("hits"),
        queried_tokens=whole("queried_tokens"),
        hit_tokens=hit,
        forks=whole("forks"),
        forked_tokens=shared - hit,
        saved_bytes=shared * sizes.token_bytes if sizes.token_bytes else None,
        copied_blocks=copied,
        copied_bytes=copied * sizes.block_bytes if sizes.block_bytes else None,
        lookup_seconds=lookup,
        reference_seconds=reference,
        index_seconds=index,
        copy_seconds=copy,
        overhead_seconds=overhead,
        saved_seconds=saved,
        net_seconds=None if saved is None else saved - overhead,
    )
