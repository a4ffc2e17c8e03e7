"""What all pages share: the agent's client, the choice of engine, and how trouble with the agent is shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from kvledger_agent.client import (
    AgentClient,
    AgentStale,
    AgentUnreachable,
    ClientError,
    EngineUnreadable,
    UnknownEngine,
)
from kvledger_dashboards.explorer.legend import legend
from kvledger_dashboards.explorer.settings import agent_client
from kvledger_dashboards.explorer.views import engines
from kvledger_dashboards.explorer.views.text import literal

REFRESH_SECONDS = 1.0
TILE_WIDTH = 190
"""Pixels: a label and a number with its unit are not cut."""
SHOWN, CHOSEN = "shown_engines", "engine"
START_AGENT = "kvledger agent --directory /dev/shm/kvledger"
START_ENGINE = "kvledger engine --directory /dev/shm/kvledger"


def client() -> AgentClient:
    """The agent's client of this process."""
    return agent_client()


def is_dark() -> bool:
    """Whether the browser shows the dark theme."""
    return st.context.theme.type == "dark"


@contextmanager
def told() -> Iterator[None]:
    """Show what goes wrong with the agent in the place of what could not be shown; the next refresh tries again."""
    try:
        yield
    except AgentUnreachable as error:
        st.error(f"**The agent does not answer.** {literal(error)}", icon=":material/cloud_off:")
        st.caption("Nothing is known of any engine until it does. To start one:")
        st.code(START_AGENT, language=None)
    except AgentStale as error:
        st.warning(
            f"**The agent is stale.** {literal(error)}\n\nIt runs, but has stopped sampling; its last numbers are not "
            "shown, because they would look like the present. See its log, and whether its process is stopped.",
            icon=":material/hourglass_disabled:",
        )
    except UnknownEngine as error:
        st.warning(f"**This engine is gone.** {literal(error)}", icon=":material/help:")
    except EngineUnreadable as error:
        st.error(f"**The ledger cannot be read.** {literal(error)}", icon=":material/error:")
    except ClientError as error:
        st.error(f"**The agent's answer cannot be shown.** {literal(error)}", icon=":material/error:")


def choose_engine() -> None:
    """The sidebar's choice of engine. What was found is kept, so that pages notice when it changes."""
    found: tuple[str, ...] = ()
    with st.sidebar:
        try:
            document = client().engines()
            st.session_state[SHOWN], found = engines.keys(document), engines.readable_keys(document)
        except ClientError:
            st.session_state[SHOWN] = None
        if found:
            if st.session_state.get(CHOSEN) not in found:
                st.session_state[CHOSEN] = engines.asked_for(_asked(), found) or found[0]
            st.selectbox("Engine", found, key=CHOSEN)
        st.caption(f"Agent  \n`{client().url}`")


def _asked() -> list[str]:
    """Engines that the address names: `?engine=NAME:RANK`, or the boards' variable."""
    return [name for key in ("engine", "var-engine") for name in st.query_params.get_all(key)]


def watched_engines() -> dict[str, Any]:
    """The agent's engines now; if the sidebar offers others, the page runs anew. Raises `ClientError`."""
    document = client().engines()
    if st.session_state.get(SHOWN) != engines.keys(document):
        st.rerun()
    if not document["engines"]:
        st.info("**No engine yet.** The agent runs and finds no ledger in its directory.", icon=":material/search:")
        st.caption("An engine appears here within a second of its start. To start one:")
        st.code(START_ENGINE, language=None)
        st.stop()
    return document


def chosen_snapshot() -> tuple[str, dict[str, Any]]:
    """The chosen engine and its snapshot, with a warning above the page where it is not a live engine's present.

    Raises `ClientError`.
    """
    document = watched_engines()
    key = st.session_state.get(CHOSEN)
    if key is None:
        lines = [f"{line['id']}: {line.get('error') or line['status']}" for line in document["engines"]]
        raise EngineUnreadable("no ledger of this agent can be read. " + "; ".join(lines))
    snapshot = client().snapshot(key)
    warn(engines.warning_of_snapshot(snapshot))
    return key, snapshot


def draw(figure: go.Figure, *, key: str, words: str, config: Mapping[str, Any]) -> None:
    """A figure below its legend; `words` are what a screen reader says of it."""
    st.html(legend(figure))
    st.plotly_chart(figure, key=key, config=dict(config), alt=words)


def tiles(facts: Iterable[Mapping[str, Any]], *, width: int = TILE_WIDTH) -> None:
    """Numbers in boxes of one width, `st.metric`'s arguments each; in as many lines as the page's width asks for."""
    with st.container(horizontal=True):
        for fact in facts:
            st.metric(**fact, border=True, width=width)


def warn(warning: str | None) -> None:
    """Say above everything else that what follows is not the present."""
    if warning:
        st.warning(literal(warning), icon=":material/history:")
