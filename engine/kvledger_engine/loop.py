"""The engine's loop: one thread that owns every request, and the publications in which anything changes.

A step is two publications with the compute between them: plan and publish, compute, apply and publish. Submissions and
cancellations come between steps and are a publication each. Decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvledger.clock import NS_PER_SECOND
from kvledger.stats import observer
from kvledger.views import I32
from kvledger.words import CancelCause, FinishReason, ReleaseCause, StepPhase
from kvledger.writer import Ledger
from kvledger_engine.attempts import Attempts
from kvledger_engine.batch import Batch, Compute
from kvledger_engine.caches import make_cache
from kvledger_engine.config import EngineConfig
from kvledger_engine.deadlines import Deadlines
from kvledger_engine.ending import Ending
from kvledger_engine.faults import FaultPlan
from kvledger_engine.intake import Intake
from kvledger_engine.kvcache import KvCache
from kvledger_engine.messages import Finished, NewRequest, Refused, Stop, Tokens
from kvledger_engine.prefill import PrefillPace
from kvledger_engine.pricing import Pricing
from kvledger_engine.progress import Progress
from kvledger_engine.request import RequestTable
from kvledger_engine.scheduler import Scheduler
from kvledger_engine.waits import WaitQueue

_RELEASE_OF_CANCEL = {CancelCause.DISCONNECT: ReleaseCause.DISCONNECT, CancelCause.API: ReleaseCause.API}


class EngineLoop:
    """An engine core without a process around it. `fault` switches on one defect of the cache, for drills."""

    def __init__(self, config: EngineConfig, ledger: Ledger, compute: Compute, fault: FaultPlan | None = None) -> None:
        self._config, self._ledger, self._attempts = config, ledger, Attempts(ledger, compute)
        self._requests = RequestTable(config, ledger)
        self._cache = make_cache(config, ledger, fault)
        self._queue = WaitQueue(ledger, laned=config.quotas is not None)
        self._deadlines = Deadlines(config, ledger, self._requests)
        self._intake = Intake(config, ledger, requests=self._requests, queue=self._queue, deadlines=self._deadlines)
        self._ending = Ending(ledger, self._requests, self._cache)
        self._scheduler = Scheduler(
            config,
            ledger,
            requests=self._requests,
            cache=self._cache,
            queue=self._queue,
            ending=self._ending,
            deadlines=self._deadlines,
        )
        self._progress = Progress(
            ledger, requests=self._requests, cache=self._cache, scheduler=self._scheduler, ending=self._ending
        )
        self._prefill = PrefillPace(ledger)
        self._pricing = Pricing(config, ledger)
        self._take_handles()
        self._execute = self._attempts.execute

    def _take_handles(self) -> None:
        stats = self._ledger.stats
        self._values = stats.values
        self._running, self._waiting = stats.gauge("running"), stats.gauge("waiting")
        self._steps, self._steps_total = stats.gauge("steps"), stats.counter("engine_steps_total")
        phases = [stats.histogram("step", phase=phase.word) for phase in StepPhase]
        self._observe_phases = observer(phases)
        self._last_publication_ns = 0

    # -- between steps --------------------------------------------------------------------------------------------

    @property
    def cache(self) -> KvCache:
        """The engine's blocks, for whoever counts beside the ledger."""
        return self._cache

    @property
    def compute_lost(self) -> bool:
        """Whether the compute has said that it can do no further step: all requests have ended, none is taken."""
        return self._attempts.lost

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do or to hand out."""
        return self._is_active or bool(self._ending.outbox)

    @property
    def _is_active(self) -> bool:
        return len(self._scheduler.running) > 0 or self._queue.sequences > 0

    def submit(self, request: NewRequest) -> Refused | None:
        """Take a request in, or say why not. One publication."""
        refused = self.submit_many([request])
        return refused[0] if refused else None

    def submit_many(self, requests: Sequence[NewRequest]) -> list[Refused]:
        """Take requests in, in this order, in one publication. Returns those that were refused, which are counted."""
        if not requests:
            return []
        self._ledger.begin()
        refused = [answer for answer in map(self._intake.receive, requests) if answer is not None]
        self._publish()
        return refused

    def cancel(self, request_ids: Sequence[str], cause: CancelCause, *, since_ns: int | None = None) -> None:
        """End requests in whatever state they are; unknown and ended ones are ignored. One publication.

        Their blocks are back when this returns; `since_ns` is when the cancel was received; None = now.
        """
        self.cancel_many([(request_ids, cause, since_ns)])

    def cancel_many(self, cancels: Sequence[tuple[Sequence[str], CancelCause, int | None]]) -> None:
        """As `cancel`, for each (ids, cause, since_ns), all in one publication. Of a request the first one counts."""
        asked: dict[str, tuple[CancelCause, int | None]] = {}
        for request_ids, cause, since_ns in cancels:
            for request_id in request_ids:
                asked.setdefault(request_id, (cause, since_ns))
        live = [(group, *how) for name, how in asked.items() if len(group := self._requests.slots_of(name))]
        if not live:
            return
        self._ledger.begin()
        for group, cause, since_ns in live:
            self._leave_queue(group)
            release = _RELEASE_OF_CANCEL[cause]
            self._ending.end(group, FinishReason.CANCELLED, release=release, cancel=cause, since_ns=since_ns)
        self._scheduler.drop_ended()
        self._publish()

    def stop(self, stops: Sequence[Stop]) -> None:
        """End sequences whose text is complete, as if they had drawn a stop token. One publication.

        Those that have ended are ignored, and so are those without a token: their text cannot be complete.
        """
        asked = [(slot, stop.since_ns) for stop in stops for slot in self._stopped(stop)]
        if not asked:
            return
        self._ledger.begin()
        for slot, since_ns in asked:
            group = np.array([slot], np.int32)
            self._leave_queue(group)
            self._ending.end(group, FinishReason.STOP, release=ReleaseCause.FINISH, since_ns=since_ns)
        self._scheduler.drop_ended()
        self._publish()

    def _stopped(self, stop: Stop) -> list[int]:
        slots, indices = self._requests.slots_of(stop.request_id).tolist(), self._requests.indices
        return [slot for slot in slots if indices[slot] == stop.index and self._ledger.slots.output_tokens[slot] > 0]

    def _leave_queue(self, group: I32) -> None:
        for slot in group.tolist():
            if slot in self._queue:
                self._queue.leave(slot)

    def drain(self) -> None:
        """Refuse new requests from now on; those accepted go on to their end."""
        self._intake.drain()

    def close(self, *, clean: bool = True) -> None:
        """Leave the ledger behind, closed if the end is a `clean` one: asked for, and with the compute at work."""
        self._ledger.close(clean=clean)

    # -- a step ---------------------------------------------------------------------------------------------------

    def step(self) -> list[Tokens | Finished | Refused]:
        """Compute one step and hand out what came of it. Without work nothing is published."""
        if self._is_active:
            self._step()
        outbox, self._ending.outbox = self._ending.outbox, []
        return outbox

    def _step(self) -> None:
        ledger, clock = self._ledger, self._ledger.clock
        ledger.begin()
        started = ledger.now_ns
        if self._deadlines.next_ns <= started:
            self._expire()
        batch = self._scheduler.schedule()
        scheduled = clock.now_ns()
        self._publish()
        published = clock.now_ns()
        sampled = self._execute(batch) if batch is not None else None
        ledger.begin()
        computed = ledger.now_ns
        if batch is not None:
            if isinstance(sampled, np.ndarray):
                self._prefill.note(batch, (computed - published) / NS_PER_SECOND)
            self._apply(batch, sampled)
        self._values[self._steps] += 1
        self._values[self._steps_total] += 1
        applied = clock.now_ns()
        self._observe_phases(
            (
                (scheduled - started) / NS_PER_SECOND,
                (computed - published) / NS_PER_SECOND,
                (applied - computed) / NS_PER_SECOND,
                (published - scheduled + self._last_publication_ns) / NS_PER_SECOND,
            )
        )
        self._publish()
        # The second publication cannot show its own length: it is counted with the next step's first one.
        self._last_publication_ns = clock.now_ns() - applied

    def _expire(self) -> None:
        """Turn away who has waited too long, and end what has run too long."""
        self._ending.outbox += self._intake.turn_away_overdue()
        overdue = self._deadlines.overdue_runs()
        if not overdue:
            return
        self._leave_queue(np.array([slot for slot, _ in overdue], np.int32))
        for slot, due_ns in overdue:
            group = np.array([slot], np.int32)
            self._ending.end(group, FinishReason.RUN_TIMEOUT, release=ReleaseCause.TIMEOUT, since_ns=due_ns)
        self._scheduler.drop_ended()

    def _apply(self, batch: Batch, sampled: I32 | FinishReason | None) -> None:
        if isinstance(sampled, np.ndarray):
            self._progress.apply(batch, sampled)
            return
        assert sampled is not None
        # What the failed step wrote is not in the prefix index, and everybody who could read it ends here; copies
        # that were not made go with the blocks they were meant for, and nothing counts as swapped out by it.
        self._scheduler.swaps_failed()
        if self.compute_lost:
            self._end_all(sampled)
            return
        groups = [self._requests.group(slot) for slot in batch.slots.tolist()]
        self._ending.end(np.concatenate(groups), sampled, release=ReleaseCause.ERROR)
        self._scheduler.drop_ended()

    def _end_all(self, reason: FinishReason) -> None:
        """End every request, waiting ones too, and take no other: nothing will be computed any more."""
        self.drain()
        live = self._requests.live_slots()
        self._leave_queue(live)
        self._ending.end(live, reason, release=ReleaseCause.ERROR)
        self._scheduler.drop_ended()

    def _publish(self) -> None:
        """Show the sizes of running set and queue, price what was held, and close the publication."""
        running, waiting = len(self._scheduler.running), self._queue.sequences
        self._values[self._running], self._values[self._waiting] = running, waiting
        self._pricing.price()
        self._ledger.end(idle=not (running or waiting))
