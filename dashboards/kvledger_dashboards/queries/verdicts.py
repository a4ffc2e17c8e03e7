"""Queries of the verdicts, their reasons, the shares of request time, findings and leaks."""

from __future__ import annotations

from types import MappingProxyType

from kvledger.words import Verdict
from kvledger_dashboards.queries.selection import CORE, CORE_LEGEND, Query, added, now, select

VERDICTS = MappingProxyType({word: now(added("verdict", verdict=word), word) for word in Verdict.words()})
"""How many engine cores have each verdict."""
VERDICT_OF_EACH = now(f"max by ({CORE}, verdict) ({select('verdict')}) == 1", f"{CORE_LEGEND}: {{{{verdict}}}}")
OPEN_FINDINGS = now(added("findings"), "findings")

LEAKED = Query(added("pool_leaked_blocks", CORE), CORE_LEGEND)
FINDINGS = Query(added("findings", "kind"), "{{kind}}")
VIOLATIONS = Query(f"sum by (invariant) (abs({select('invariant_violations')}))", "invariant {{invariant}}, blocks off")
