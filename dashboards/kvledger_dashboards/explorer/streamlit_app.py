"""The explorer's entry: pages, the choice of engine, and the page's title. Started by `kvledger explorer`."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from kvledger_dashboards.explorer import shell

HERE = Path(__file__).parent

# A file of ours: for a Material icon in its place the browser would ask a font server on the internet.
st.set_page_config(page_title="kvledger explorer", page_icon=str(HERE / "favicon.png"), layout="wide")

page = st.navigation(
    [
        st.Page(
            "app_pages/overview.py",
            title="Overview",
            default=True,
            help="Every engine's verdict, pool, waits and refusals, the gravest first.",
        ),
        st.Page(
            "app_pages/block_map.py",
            title="Block map",
            help="Every block of the chosen engine's pool as one cell, live. Look up one block by its id.",
        ),
        st.Page(
            "app_pages/requests.py",
            title="Requests",
            help="Every live request: blocks held and shared, and what it has waited for.",
        ),
        st.Page(
            "app_pages/leaks.py",
            title="Leaks",
            help="Open findings with their evidence; where there is none, what was checked.",
        ),
    ]
)
shell.choose_engine()
st.title(page.title)
page.run()
