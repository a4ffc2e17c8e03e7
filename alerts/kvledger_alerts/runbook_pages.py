"""The runbook: one page per alert, found by the alert's name. Knows where pages lie and what a new one begins with."""

from __future__ import annotations

import re
from pathlib import Path

from kvledger_alerts.places import PLACES
from kvledger_alerts.table import AlertRow

RUNBOOK = Path(__file__).parent / "runbook"
SECTIONS = ("First look", "Meaning", "Impact", "Diagnosis", "Mitigation", "Decision")
"""Whoever is woken reads from the top: the first command comes before what is to be understood."""
DECISIONS = ("add capacity", "throttle", "change block policy", "fix leak", "look downstream")
TO_WRITE = "(to write)"
TRIAGE = "README"
"""The page where everybody begins; it is about no alert."""


def page_path(alert: str) -> Path:
    """Where an alert's page lies."""
    return RUNBOOK / f"{alert}.md"


def skeleton(row: AlertRow) -> str:
    """What a new alert's page begins with: its sections in order, what the table knows, and marks where to write."""
    place = PLACES[row.name].line() if row.name in PLACES else TO_WRITE
    texts = {
        "First look": f"```sh\ncurl -s $AGENT/metrics | grep -E '{_pattern(row.expression)}'\n```\n\n"
        f"Look for `{TO_WRITE}`.",
        "Meaning": f"{row.summary}.",
        "Impact": TO_WRITE,
        "Diagnosis": TO_WRITE,
        "Mitigation": f"{TO_WRITE} It is not {row.silent}.",
        "Decision": "\n".join(f"- **{decision}** if {TO_WRITE}" for decision in DECISIONS),
    }
    return f"# {row.name}\n\n{place}\n\n" + "\n".join(f"## {name}\n\n{texts[name]}\n" for name in SECTIONS)


def _pattern(expression: str) -> str:
    return "|".join(dict.fromkeys(re.findall(r"\bkvledger_\w+(?=[\[{ )])", expression))) or "kvledger_"
