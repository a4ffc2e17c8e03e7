"""Live requests of the chosen engine: who holds what, shares what, and has waited for what."""

from __future__ import annotations

from typing import Any

import streamlit as st

from kvledger_dashboards.explorer import charts, shell
from kvledger_dashboards.explorer.views import requests as view
from kvledger_dashboards.explorer.views import waits as time_view
from kvledger_dashboards.explorer.views.text import count, duration, literal

LOGICAL = "The lengths of their block tables, added up: a shared block counts once in each table that names it"
SECONDS = st.column_config.NumberColumn(format="%.2f s")
COLUMNS = {
    "serial": st.column_config.NumberColumn(format="%d", pinned=True),
    "request": st.column_config.TextColumn(help="The client's id; the ledger keeps its first 40 and last 16 bytes"),
    "tenant": st.column_config.TextColumn(width="small"),
    "blocks": st.column_config.NumberColumn(help="The length of its block table"),
    "shared": st.column_config.NumberColumn(help="Of its blocks, those that another live table names, too"),
    "peak": st.column_config.NumberColumn(help="The most blocks it has held"),
    "age": SECONDS,
    "waited": SECONDS,
    "first token": st.column_config.NumberColumn(help="From arrival to the first token", format="%.2f s"),
    "computed tokens": st.column_config.NumberColumn(
        help="Of prompt and output, those whose keys and values are stored"
    ),
    "block-seconds": st.column_config.NumberColumn(format="%.1f", help="A shared block's second is split"),
}
WINDOW_SECONDS = 60.0
TILE_WIDTH = 135
"""Pixels: all four are side by side on a page of 1,000."""
TIME_COLUMNS = {
    "who": st.column_config.TextColumn(pinned=True),
    "requests": st.column_config.NumberColumn(format="%d", width="small"),
    **{name: st.column_config.NumberColumn(format="%.3f s", width="small") for name in ("P50", "P95", "P99")},
    "mean is made of": st.column_config.TextColumn(
        help="Waits by their cause, and the work: the parts add up to the mean of the whole", width="large"
    ),
    "P95 of the parts": st.column_config.TextColumn(help="Of each part by itself: these do not add up"),
}


@st.fragment(run_every=shell.REFRESH_SECONDS, key="requests")
def live() -> None:
    """Table and waits, once a second."""
    with shell.told():
        key, _ = shell.chosen_snapshot()
        document = shell.client().requests(key)
        rows = _filtered(document["requests"])
        _numbers(rows, document)
        if rows:
            _waits(rows)
            _table(rows)
        else:
            st.info("No live request." if not document["requests"] else "No live request is of this choice.")
        _time(key)


def _filtered(rows: list[view.Row]) -> list[view.Row]:
    left, right = st.columns(2)
    # A choice stays offered while it is made, even if the last such request has just ended.
    states = sorted({*view.values(rows, "state"), *st.session_state.get("states", [])})
    tenants = sorted({*view.values(rows, "tenant"), *st.session_state.get("tenants", [])})
    with left:
        wanted_states = st.multiselect("State", states, key="states", placeholder="every state")
    with right:
        wanted_tenants = st.multiselect("Tenant", tenants, key="tenants", placeholder="every tenant")
    return view.chosen(rows, states=wanted_states, tenants=wanted_tenants)


def _numbers(rows: list[view.Row], document: dict[str, Any]) -> None:
    waiting = sum(1 for row in rows if row["wait_cause"])
    oldest = max((row["age_seconds"] for row in rows), default=None)
    shell.tiles(
        (
            {"label": "Live", "value": count(len(rows))},
            {"label": "Waiting now", "value": count(waiting)},
            {"label": "Logical blocks", "value": count(sum(row["blocks"] for row in rows)), "help": LOGICAL},
            {"label": "Oldest", "value": "none" if oldest is None else duration(oldest)},
        ),
        width=TILE_WIDTH,
    )
    if document["left_out"]:
        st.caption(f"{document['left_out']} more were being changed at this moment and have no row this time.")


def _table(rows: list[view.Row]) -> None:
    st.subheader("Live requests", anchor=False)
    shown = view.table(rows)
    words = f"{len(shown)} live requests, the greatest holders of blocks first"
    st.dataframe(shown, hide_index=True, column_config=COLUMNS, key="table", placeholder="not yet", alt=words)


def _time(key: str) -> None:
    """Where the time of requests goes: those that got their first token, or ended, in the last minute."""
    st.subheader("Where the last minute's time went", anchor=False)
    document = shell.client().waits(key, window_seconds=WINDOW_SECONDS)
    rows = time_view.table(document)
    if rows:
        words = "Time to the first token and whole time, for all, by tenant and by class"
        st.dataframe(rows, hide_index=True, column_config=TIME_COLUMNS, key="time", alt=words)
    else:
        st.caption("In the last minute no request got its first token, and none ended.")
    st.caption(literal(time_view.oldest(document)))


def _waits(rows: list[view.Row]) -> None:
    st.subheader("Waits by cause", anchor=False)
    bars = view.wait_bars(rows)
    if not bars.requests:
        st.caption("None of them has waited.")
        return
    words = view.waits_caption(rows, bars)
    shell.draw(charts.waits_figure(bars, dark=shell.is_dark()), key="waits", words=words, config=charts.CONFIG)
    st.caption(literal(words))


live()
