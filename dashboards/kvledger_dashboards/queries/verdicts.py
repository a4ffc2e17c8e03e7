"""Queries of the verdicts, their reasons, the shares of request time, findings and leaks."""

from __future__ import annotations

from types import MappingProxyType

from kvledger.words import Verdict
from kvledger_dashboards.queries.selection import CORE, CORE_LEGEND, Query, added, now, rows, select

VERDICTS = MappingProxyType({word: now(added("verdict", verdict=word), word) for word in Verdict.words()})
"""How many engine cores have each verdict."""
_REASONS = f"max by ({CORE}, verdict_reason) ({select('verdict_reason')}) == 1"
VERDICT_LABEL, ACTION_LABEL = "verdict", "action"
_TWICE = f'label_join({_REASONS}, "{VERDICT_LABEL}", "", "verdict_reason")'
REASON_OF_EACH = rows(f'label_join({_TWICE}, "{ACTION_LABEL}", "", "verdict_reason")')
"""One row per engine core. The reason stands in three columns, of which a table makes verdict, reason and action."""
REASONS = Query(f"sum by (verdict_reason) ({select('verdict_reason')} == 1)", "{{verdict_reason}}")
"""How many engine cores have each reason; a reason that nobody has is no series."""
SHARES = Query(f"avg by (part) ({select('verdict_share')})", "{{part}}")
OPEN_FINDINGS = now(added("findings"), "findings")

LEAKED = Query(added("pool_leaked_blocks", CORE), CORE_LEGEND)
FINDINGS = Query(added("findings", "kind"), "{{kind}}")
NOTES = Query(added("notes", "kind"), "{{kind}}")
VIOLATIONS = Query(f"sum by (invariant) (abs({select('invariant_violations')}))", "invariant {{invariant}}, blocks off")
