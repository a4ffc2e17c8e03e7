"""Findings of the chosen engine with their evidence; where there is none, what was checked."""

from __future__ import annotations

import streamlit as st

from kvledger_dashboards.explorer import shell
from kvledger_dashboards.explorer.views.leaks import FindingCard, Judgement, judgement
from kvledger_dashboards.explorer.views.text import UNKNOWN, count, duration, literal, size, spaced

GROWTH_HELP = (
    "Of all findings of this kind, over the last minute; unknown until they have been watched for some seconds"
)
LEAST_GROWTH = 0.05
"""Blocks per minute that are shown as none: less than the figure's last digit."""


@st.fragment(run_every=shell.REFRESH_SECONDS, key="leaks")
def live() -> None:
    """The findings, once a second."""
    with shell.told():
        _, snapshot = shell.chosen_snapshot()
        found = judgement(snapshot)
        if not found.audited:
            st.warning("**Unknown.** Nothing audits this engine: it cannot be said whether it leaks.")
            return
        _summary(found)
        for card in found.cards:
            with st.container(border=True):
                _card(card)
        _violations(found)
        _checked(found)


def _summary(found: Judgement) -> None:
    if found.undecided:
        doubt = "" if found.in_doubt else " Its engine is gone, so that they can no longer be decided."
        st.warning(
            f"**Undecided: {count(found.undecided)} suspicions.** They have not lasted for the grace yet; most often "
            f"they never do. They are neither findings nor cleared.{doubt}",
            icon=":material/pending:",
        )
    elif found.undecided is None:
        st.info("Whether there are undecided suspicions is unknown.")
    if not found.cards and not found.violations:
        st.success("**No finding.** Nothing that was checked is lastingly wrong.", icon=":material/check_circle:")


def _card(card: FindingCard) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.subheader(spaced(card.kind).capitalize(), anchor=False, width="content")
        st.badge("owner proven" if card.proven else "candidates", color="red" if card.proven else "orange")
    st.markdown(literal(card.meaning))
    facts = (
        ("Blocks", count(card.block_count)),
        ("Memory", size(card.bytes)),
        ("Since", UNKNOWN if card.age_seconds is None else f"{duration(card.age_seconds)} ago"),
        ("Growth", _growth(card.growth_blocks_per_minute)),
    )
    shell.tiles(
        {"label": label, "value": value, "help": GROWTH_HELP if label == "Growth" else None} for label, value in facts
    )
    st.markdown(f"**{'Owner' if card.proven else 'Candidates'}:** {literal(card.known)}.")
    if card.people:
        st.dataframe([dict(person) for person in card.people], hide_index=True, alt="Owner or candidates")
    st.caption(f"Blocks: {card.listed}")


def _growth(blocks_per_minute: float | None) -> str:
    if blocks_per_minute is None:
        return UNKNOWN
    return "none" if abs(blocks_per_minute) < LEAST_GROWTH else f"{blocks_per_minute:+,.1f} blocks/min"


def _violations(found: Judgement) -> None:
    if found.violations:
        st.error("**Counts that are lastingly off.** Recounted from the blocks, they differ from what is published.")
        rows = [{"count": spaced(name), "off by, blocks": off} for name, off in found.violations.items()]
        st.dataframe(rows, hide_index=True, alt="Counts that are off")


def _checked(found: Judgement) -> None:
    with st.expander("What was checked", expanded=not found.cards):
        st.markdown("\n".join(f"- {literal(line)}" for line in found.checked))


live()
