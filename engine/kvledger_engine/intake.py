"""The intake: requests are accepted or refused here, at the door or when they have waited too long, and counted.

Owns the count of refusals. Within an open publication; holds no block, and whom it turns away has held none.
"""

from __future__ import annotations

import numpy as np

from kvledger.catalog import OTHER_TENANT
from kvledger.clock import NS_PER_SECOND
from kvledger.words import TURNED_AWAY, Event, RejectionReason, RequestState
from kvledger.writer import Ledger
from kvledger_engine.admission import Door, Refusal, is_tenant_name
from kvledger_engine.config import EngineConfig
from kvledger_engine.deadlines import Deadlines
from kvledger_engine.messages import NewRequest, Refused
from kvledger_engine.request import RequestTable
from kvledger_engine.summaries import Summaries
from kvledger_engine.waits import WaitQueue


class Intake:
    """Takes requests into the queue, or says why not."""

    def __init__(
        self, config: EngineConfig, ledger: Ledger, *, requests: RequestTable, queue: WaitQueue, deadlines: Deadlines
    ) -> None:
        self._ledger, self._requests, self._queue, self._deadlines = ledger, requests, queue, deadlines
        self._door = Door(config, requests, queue, ledger.tenant_column)
        self._summaries = Summaries(ledger)
        stats = ledger.stats
        self._values = stats.values
        self._prompt_tokens = stats.counter("prompt_tokens_total")
        self._rejections = [stats.counter("rejections_total", reason=reason.word) for reason in RejectionReason]
        self._tenant_rejections = stats.tenant_counter("tenant_rejections_total")

    def drain(self) -> None:
        """Refuse every request from now on."""
        self._door.draining = True

    def receive(self, request: NewRequest) -> Refused | None:
        """Take a request in: it waits. Or say why not."""
        refusal = self._door.refusal(request)
        if refusal is not None:
            return self._refuse(request, refusal)
        now_ns = self._ledger.now_ns
        # A request that came while a step ran has waited for that step already.
        arrived_ns = min(request.arrived_ns, now_ns) if request.arrived_ns > 0 else now_ns
        column = self._ledger.tenant_column(request.tenant)
        group = self._requests.open(request, tenant_column=column, arrived_ns=arrived_ns)
        self._queue.arrive(group)
        self._deadlines.arrived(group, request.queue_timeout_seconds)
        self._values[self._prompt_tokens] += len(request.prompt)
        for slot in group.tolist():
            self._ledger.event(Event.ARRIVED, self._ledger.slots.serial.item(slot))
        return None

    def _refuse(self, request: NewRequest, refusal: Refusal) -> Refused:
        tenant = request.tenant if is_tenant_name(request.tenant) else OTHER_TENANT
        self._count(refusal.reason, self._ledger.tenant_column(tenant))
        self._ledger.event(Event.REJECTED, self._requests.next_serial(), detail=refusal.reason)
        return _told(request.request_id, refusal)

    def _count(self, reason: RejectionReason, tenant_column: int) -> None:
        self._values[self._rejections[reason]] += 1
        self._tenant_rejections[tenant_column] += 1

    def turn_away_overdue(self) -> list[Refused]:
        """Refuse those that have waited too long for their first block; their waits are accounted for, in a summary."""
        return [self._turn_away(leader) for leader in self._deadlines.overdue_waits()]

    def _turn_away(self, leader: int) -> Refused:
        slots, request_id = self._ledger.slots, self._requests.request_ids[leader]
        group = self._queue.leave(leader)
        assert not slots.table_blocks[group.astype(np.intp)].any(), f"slot {leader} waits with blocks"
        waited_seconds = (self._ledger.now_ns - slots.arrived_ns.item(leader)) / NS_PER_SECOND
        self._count(RejectionReason.QUEUE_TIMEOUT, slots.tenant.item(leader))
        self._requests.move(group, RequestState.FINISHING)
        for slot in group.tolist():
            self._ledger.event(Event.REJECTED, slots.serial.item(slot), detail=RejectionReason.QUEUE_TIMEOUT)
            slots.finish_reason[slot], slots.finishing_ns[slot] = TURNED_AWAY, self._ledger.now_ns
            self._summaries.write(slot, released_blocks=0)
        self._requests.close(group)
        fact = f"The request waited {waited_seconds:.1f} s and was not begun"
        return _told(request_id, Refusal(RejectionReason.QUEUE_TIMEOUT, fact))


def _told(request_id: str, refusal: Refusal) -> Refused:
    return Refused(
        request_id=request_id, reason=refusal.reason.word, advice=refusal.advice, retryable=refusal.retryable
    )
