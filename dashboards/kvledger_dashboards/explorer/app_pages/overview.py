"""Every engine: verdict, action and evidence; the pool; waits by cause; refusals. The gravest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import streamlit as st

from kvledger_agent.client import EngineUnreadable
from kvledger_dashboards.explorer import charts, shell
from kvledger_dashboards.explorer.views.engines import EngineHead, engine_heads, warning_of_snapshot
from kvledger_dashboards.explorer.views.overview import Demand, History, PoolBar, demand, pool_bar
from kvledger_dashboards.explorer.views.text import UNKNOWN, count, duration, literal, share, spaced

MAX_CARDS = 12
TILE_WIDTH, TILES_WIDTH, WORDS_WIDTH = 145, 470, 360
"""Pixels: three numbers side by side, and beside them, or below where there is no room, who waits for what."""
POOL_HELP = (
    "Headroom: free + cached blocks less those that admitted requests may still need up to max_tokens. Below 0, "
    "not all of them can run to their end without a preemption. Exhaustion: headroom at the last minute's net growth."
)


@st.fragment(run_every=shell.REFRESH_SECONDS, key="overview")
def live() -> None:
    """All engines, once a second."""
    with shell.told():
        heads = engine_heads(shell.watched_engines())
        for head in heads[:MAX_CARDS]:
            with st.container(border=True):
                _card(head)
        if heads[MAX_CARDS:]:
            st.subheader(f"{len(heads) - MAX_CARDS} more engines")
            st.dataframe([_line(head) for head in heads[MAX_CARDS:]], hide_index=True, alt="The remaining engines")


def _line(head: EngineHead) -> dict[str, str]:
    return {
        "engine": head.key,
        "status": head.status,
        "verdict": spaced(head.verdict),
        "why": spaced(head.reason or UNKNOWN),
        "evidence": head.evidence,
    }


def _card(head: EngineHead) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.subheader(literal(head.key), anchor=False, width="content")
        st.badge(spaced(head.verdict), color=head.colour)  # type: ignore[arg-type] # one of streamlit's colour names
        if head.reason is not None:
            st.badge(spaced(head.reason), color="gray")
        st.caption(f"{literal(head.model)} · {literal(spaced(head.status))}", width="content")
    st.markdown(f"**{head.action}:** {literal(head.evidence)}")
    if head.to_do is not None and head.verdict != "healthy":
        st.markdown(f"To do: {literal(head.to_do)}.")
    if head.request_time is not None:
        st.caption(literal(head.request_time))
    if not head.readable:
        return
    try:
        snapshot = shell.client().snapshot(head.key)
    except EngineUnreadable as error:
        st.error(literal(error), icon=":material/error:")
        return
    shell.warn(warning_of_snapshot(snapshot))
    _numbers(head.key, snapshot)


def _numbers(key: str, snapshot: Mapping[str, Any]) -> None:
    bar, wants = pool_bar(snapshot), demand(snapshot)
    history: History = st.session_state.setdefault(f"history {key}", History())
    history.see(snapshot)
    if bar.capacity_blocks is None:
        st.info("The pool is unknown: this engine does not report it.")
    else:
        figure = charts.pool_figure(bar, dark=shell.is_dark())
        words = f"{share(bar.active_blocks, bar.capacity_blocks)} of the pool is active"
        shell.draw(figure, key=f"pool {key}", words=words, config=charts.CONFIG)
    st.caption(_pool_words(bar), help=POOL_HELP)
    with st.container(horizontal=True, gap="medium"):
        with st.container(width=TILES_WIDTH):
            shell.tiles(_metrics(bar, wants, history), width=TILE_WIDTH)
        with st.container(width=WORDS_WIDTH):
            st.caption(_demand_words(wants))


def _metrics(bar: PoolBar, wants: Demand, history: History) -> Iterator[dict[str, Any]]:
    for label, value, name in (
        ("Active", bar.active_blocks, "active"),
        ("Shared", bar.shared_blocks, "shared"),
        ("Waiting", wants.waiting_total, "waiting"),
    ):
        seen = history.of(name)
        yield {
            "label": label,
            "value": count(value),
            "chart_data": seen if len(seen) > 1 else None,
            "chart_type": "area",
        }


def _pool_words(bar: PoolBar) -> str:
    exhausted = "not growing" if bar.growth_known else UNKNOWN
    if bar.seconds_to_exhaustion is not None:
        exhausted = f"in {duration(bar.seconds_to_exhaustion)}" if bar.seconds_to_exhaustion > 0 else "now"
    parts = (
        f"capacity {count(bar.capacity_blocks)} blocks",
        f"peak active of the last minute {count(bar.peak_active_blocks)}",
        f"headroom {count(bar.headroom_blocks)}",
        f"exhaustion {exhausted}",
        f"leaked {count(bar.leaked_blocks)}",
    )
    return literal(" · ".join(parts))


def _demand_words(wants: Demand) -> str:
    oldest = ""
    if wants.oldest_wait_seconds is not None:
        cause = spaced(wants.oldest_wait_cause or UNKNOWN)
        oldest = f" The oldest wait: {duration(wants.oldest_wait_seconds)}, for {cause}."
    lines = (
        f"Requests: {_series(wants.live, 'none')}.",
        f"Waiting for: {_series(wants.waiting, 'nothing')}.{oldest}",
        f"Refused since the start: {_series(wants.rejections, 'none')}.",
    )
    return "  \n".join(literal(line) for line in lines)


def _series(series: Mapping[str, float] | None, empty: str) -> str:
    if series is None:
        return UNKNOWN
    return ", ".join(f"{spaced(word)} {count(value)}" for word, value in series.items()) or empty


live()
