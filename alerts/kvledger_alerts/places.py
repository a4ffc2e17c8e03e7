"""Where an alert's cause is seen: its panel on a board, and its page in the explorer. Knows no address and no rule.

Boards and explorer are another package's; tests hold every place against them.
"""

from __future__ import annotations

from dataclasses import dataclass

ON_CALL, POOL, REQUESTS, ITSELF = "kvledger-oncall", "kvledger-pool", "kvledger-requests", "kvledger-itself"
OVERVIEW, BLOCK_MAP, LIVE, LEAKS = "", "block_map", "requests", "leaks"
"""Pages of the explorer, as in its addresses; the overview is its first."""


@dataclass(frozen=True, slots=True)
class Place:
    """A panel, by its board's uid, its id and its title, and a page of the explorer."""

    board: str
    panel: int
    title: str
    page: str

    def line(self) -> str:
        """The place as a runbook page names it, in terms of the variables that a reader has set."""
        chosen = "" if self.page == OVERVIEW else f"{self.page}?engine=$ENGINE"
        return (
            f"On the board: `$GRAFANA/d/{self.board}?viewPanel={self.panel}` (*{self.title}*). "
            f"In the explorer: `$EXPLORER/{chosen}`."
        )


PLACES: dict[str, Place] = {
    "KvledgerPoolHighWatermark": Place(POOL, 201, "Blocks, stacked to capacity", BLOCK_MAP),
    "KvledgerPoolExhaustionPredicted": Place(POOL, 302, "Headroom", LIVE),
    "KvledgerRejections": Place(ON_CALL, 501, "Rejections by reason", OVERVIEW),
    "KvledgerSharedPrefixPinning": Place(ON_CALL, 604, "Notes", BLOCK_MAP),
    "KvledgerBlockLeak": Place(ON_CALL, 601, "Leaked blocks", LEAKS),
    "KvledgerBlockCorruption": Place(ON_CALL, 602, "Findings by kind", LEAKS),
    "KvledgerInvariantBroken": Place(ON_CALL, 602, "Findings by kind", LEAKS),
    "KvledgerIdleHold": Place(POOL, 202, "Active share of each engine", LEAKS),
    "KvledgerSlowRelease": Place(POOL, 602, "Release time by cause, P95", LIVE),
    "KvledgerEngineStalled": Place(ON_CALL, 403, "Oldest open wait", LIVE),
    "KvledgerEngineFrozen": Place(ON_CALL, 801, "Heartbeat age", OVERVIEW),
    "KvledgerEngineDown": Place(ON_CALL, 201, "Verdict of each engine", OVERVIEW),
    "KvledgerWaitLong": Place(ON_CALL, 404, "Wait by cause, P95", LIVE),
    "KvledgerOldestWaiter": Place(ON_CALL, 403, "Oldest open wait", LIVE),
    "KvledgerNeverFit": Place(ON_CALL, 405, "Requests that never fit", LIVE),
    "KvledgerPreemptionThrash": Place(POOL, 504, "Preemptions by mode", LIVE),
    "KvledgerTenantAtQuota": Place(REQUESTS, 502, "Quota used by tenant", LIVE),
    "KvledgerPrefixHitCollapse": Place(POOL, 701, "Prefix hit rate", BLOCK_MAP),
    "KvledgerPoolBound": Place(ON_CALL, 304, "Pool: saturation", LIVE),
    "KvledgerSchedulerBound": Place(ON_CALL, 305, "Scheduler: saturation", LIVE),
    "KvledgerComputeBound": Place(ON_CALL, 303, "Compute: utilisation", OVERVIEW),
    "KvledgerTtftSloBurn": Place(ON_CALL, 503, "Time to first token", LIVE),
    "KvledgerAvailabilitySloBurn": Place(ON_CALL, 502, "Ended by reason", OVERVIEW),
    "KvledgerLedgerUnreadable": Place(ITSELF, 201, "Failing sources", OVERVIEW),
    "KvledgerSourceFailing": Place(ITSELF, 201, "Failing sources", OVERVIEW),
    "KvledgerTelemetryLost": Place(ITSELF, 301, "Events lost", OVERVIEW),
    "KvledgerFamilyMissing": Place(ITSELF, 501, "Missing signals of each engine", OVERVIEW),
    "KvledgerAgentAbsent": Place(ITSELF, 101, "Agents", OVERVIEW),
}
"""By the alert's name."""
