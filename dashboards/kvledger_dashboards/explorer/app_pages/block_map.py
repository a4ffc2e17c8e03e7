"""The chosen engine's pool, one cell per block, live; and one block looked up by its id."""

from __future__ import annotations

from typing import Any

import streamlit as st

from kvledger_agent.client import BadAnswer
from kvledger_dashboards.explorer import charts, shell
from kvledger_dashboards.explorer.views.blockmap import HOVER_LIMIT_BLOCKS, BlockMap, block_facts, block_map
from kvledger_dashboards.explorer.views.text import count, literal, share


@st.fragment(run_every=shell.REFRESH_SECONDS, key="map")
def live() -> None:
    """The map, once a second."""
    with shell.told():
        key, snapshot = shell.chosen_snapshot()
        blocks = block_map(shell.client().blocks(key), pins=_pins(key, snapshot), findings=snapshot["findings"])
        active = sum(blocks.counts.values()) - blocks.counts["free"] - blocks.counts["cached"]
        words = f"{share(active, sum(blocks.counts.values()))} of {sum(blocks.counts.values()):,} blocks are active"
        figure = charts.map_figure(blocks, dark=shell.is_dark())
        shell.draw(figure, key="block map", words=words, config=charts.MAP_CONFIG)
        st.caption(literal(_words(blocks)))


def _pins(key: str, snapshot: dict[str, Any]) -> list[dict[str, Any]]:
    """The pins, asked for only if there are any: they come with every request."""
    pinned = (snapshot.get("pool") or {}).get("pinned_blocks")
    return shell.client().requests(key)["pins"] if pinned is None or any(pinned.values()) else []


def _words(blocks: BlockMap) -> str:
    look = (
        "one look between two publications"
        if blocks.consistent
        else "read while the engine was publishing, so that a cell may be one publication behind"
    )
    parts = [f"Publication {count(blocks.published_seq)}, {look}."]
    if blocks.unlocated_blocks is None:
        parts.append("Nothing audits this engine: whether blocks have leaked is unknown.")
    elif blocks.unlocated_blocks:
        parts.append(f"Findings speak of {blocks.unlocated_blocks:,} more blocks than they list and than are marked.")
    size = sum(blocks.counts.values())
    parts.append("Point at a cell for its block." if size <= HOVER_LIMIT_BLOCKS else "Numbers at the left: block ids.")
    return " ".join(parts)


@st.fragment(key="lookup")
def lookup() -> None:
    """One block, as it is at the moment of asking."""
    with shell.told():
        wanted = st.number_input(
            "Look up a block", min_value=0, value=None, step=1, key="block", placeholder="block id"
        )
        key = st.session_state.get(shell.CHOSEN)
        if wanted is None or key is None:
            return
        try:
            row = shell.client().block(key, int(wanted))
        except BadAnswer as error:
            st.info(literal(error))
            return
        facts = block_facts(row, shell.client().requests(key)["pins"])
        shell.tiles({"label": name.capitalize(), "value": value} for name, value in facts)


live()
lookup()
