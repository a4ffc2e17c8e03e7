"""Queries of what a request needs, pool, scheduler and compute: utilisation, saturation and errors of each."""

from __future__ import annotations

from kvledger.words import FinishReason, RejectionReason, RequestState, StepPhase, WaitCause
from kvledger_dashboards.queries.pool import ACTIVE_SHARE, LOWEST_ALERT_WATERMARK
from kvledger_dashboards.queries.selection import CORE, CORE_LEGEND, Query, added, per_second, quantile

POOL_CAUSES = (WaitCause.POOL.word, WaitCause.PREEMPTION.word)
LIMITS = tuple(word for word in WaitCause.words() if word not in (*POOL_CAUSES, WaitCause.STEP.word))
"""Causes of waits that a setting can change."""
_DOOR = tuple(RejectionReason[name].word for name in ("QUEUE_FULL", "QUEUE_TIMEOUT", "TENANT_QUOTA", "EXCEEDS_QUOTA"))
_FAILED = tuple(FinishReason[name].word for name in ("ENGINE_ERROR", "OUT_OF_MEMORY", "RUN_TIMEOUT"))

POOL_USED = (ACTIVE_SHARE, LOWEST_ALERT_WATERMARK)
POOL_WAITING = (Query(added("requests_waiting", "cause", cause=POOL_CAUSES), "{{cause}}"),)
POOL_ERRORS = (
    Query(per_second("allocation_failures_total"), "allocation failures"),
    Query(per_second("preemptions_total"), "preemptions"),
    Query(per_second("rejections_total", reason=RejectionReason.EXCEEDS_POOL.word), "exceeds_pool"),
)
SCHEDULER_USED = (
    Query(added("requests_live", state=RequestState.RUNNING.word), "running"),
    Query(added("requests_peak_running"), "most in the last minute"),
)
SCHEDULER_WAITING = (Query(added("requests_waiting", "cause", cause=LIMITS), "{{cause}}"),)
SCHEDULER_ERRORS = (Query(per_second("rejections_total", "reason", reason=_DOOR), "{{reason}}"),)
COMPUTE_USED = (Query(per_second("step", CORE, phase=StepPhase.MODEL.word), CORE_LEGEND),)
COMPUTE_SATURATION = tuple(
    Query(quantile(percent, "step", phase=StepPhase.MODEL.word), f"P{percent}") for percent in (50, 95, 99)
)
COMPUTE_ERRORS = (Query(per_second("requests_total", "finish_reason", finish_reason=_FAILED), "{{finish_reason}}"),)
