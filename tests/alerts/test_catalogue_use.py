"""Every family of the catalogue is looked at by a rule or a board, or is listed here with why nobody looks."""

from __future__ import annotations

import re

from kvledger import catalog
from kvledger_alerts.fleet_rows import fleet_rows
from kvledger_alerts.rows import alert_rows, recording_rows
from kvledger_alerts.table import Parameters
from tests.dashboards.boards import annotation_queries, panel_queries

AD_HOC: dict[str, str] = {}
"""Families by their name in the catalogue, and when somebody asks for them by hand. Delete a line once a board or a
rule has the family."""


def rules() -> set[str]:
    """The families that rules look at."""
    p = Parameters()
    recorded = (*recording_rows(p), *fleet_rows(p))
    return families(" ".join([*(row.expression for row in alert_rows(p)), *(row.expression for row in recorded)]))


def boards() -> set[str]:
    """The families that boards look at, by themselves or through what is recorded."""
    return families(" ".join(asked.expr for asked in (*panel_queries(), *annotation_queries())))


def families(text: str) -> set[str]:
    """The families whose series are named in this text."""
    words = {re.sub(r"_(bucket|sum|count)$", "", word) for word in re.findall(r"\bkvledger_\w+", text)}
    named = words | set(re.findall(r"\bkvledger_\w+", text))
    return {family.name for family in catalog.FAMILIES if family.exposed_name in named}


def test_a_family_that_nobody_looks_at_is_listed_with_a_reason() -> None:
    unused = {family.name for family in catalog.FAMILIES} - rules() - boards() - AD_HOC.keys()
    assert not unused, (
        f"{sorted(unused)}: exported, and neither a rule nor a board uses them. Put each into a board "
        "(kvledger_dashboards.queries) or a rule (kvledger_alerts.*_rows), or into AD_HOC, with when one asks for it"
    )


def test_the_list_is_no_longer_than_it_has_to_be() -> None:
    used = AD_HOC.keys() & (rules() | boards())
    assert not used, f"{sorted(used)}: a rule or a board uses them now. Delete their lines from AD_HOC"
    assert not AD_HOC.keys() - {family.name for family in catalog.FAMILIES}, "a family that the catalogue does not have"
    assert all(len(reason.split()) >= 4 for reason in AD_HOC.values())
