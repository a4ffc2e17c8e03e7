"""The alerts that explain others, and what they explain: named once, so that rows and inhibition cannot disagree."""

from __future__ import annotations

from kvledger_alerts.table import IDENTITY, Cause, Severity

AGENT = "KvledgerAgentAbsent"
"""Explains everything that its agent would tell, without being named in a row."""
DOWN, FROZEN, STALLED = "KvledgerEngineDown", "KvledgerEngineFrozen", "KvledgerEngineStalled"
HIGH_WATERMARK = "KvledgerPoolHighWatermark"
LEAK, CORRUPTION = "KvledgerBlockLeak", "KvledgerBlockCorruption"
WAIT, TENANT = "KvledgerWaitLong", "KvledgerTenantAtQuota"
UNREADABLE = "KvledgerLedgerUnreadable"
POOL_BOUND, SCHEDULER_BOUND, COMPUTE_BOUND = "KvledgerPoolBound", "KvledgerSchedulerBound", "KvledgerComputeBound"

GONE = (Cause(DOWN),)
DEAD = (*GONE, Cause(FROZEN))
STUCK = (*DEAD, Cause(STALLED))
"""An engine that does not move has no load of its own: what its numbers look like is a consequence."""
FULL = Cause(HIGH_WATERMARK, Severity.CRITICAL)
"""A full pool that requests suffer from."""
FULL_OR_NEARLY = Cause(HIGH_WATERMARK)
FULL_POOL = Cause(HIGH_WATERMARK, Severity.CRITICAL, same=(*IDENTITY, "pool"))
POOL_WAITS = Cause(HIGH_WATERMARK, only=('cause="pool"',))
"""Waits for the pool are what the high watermark tells of; waits for anything else are not."""
LIMITS = "batch_slots|token_budget|class_budget|fair_share|tenant_quota"
HELD_BACK = Cause(SCHEDULER_BOUND, only=(f'cause=~"{LIMITS}"',))
"""Waits for a limit of the scheduler, which has been what limits the engine for long."""
