"""One publication: what the hooks noted during an entry point of the scheduler, made visible in the ledger.

Owns the order of things. Blocks and slots are stamped first; released tables are read before blocks begin anew, and
tables are extended before counts change, so that clocks and charges come out right.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from kvledger.writer import Ledger
from kvledger_vllm.cells import Cells
from kvledger_vllm.delayed import Delayed
from kvledger_vllm.growth import Growth
from kvledger_vllm.holdings import Holdings, Plan
from kvledger_vllm.lifecycle import Lifecycle
from kvledger_vllm.mirror import Change, Mirror
from kvledger_vllm.notes import Notes
from kvledger_vllm.pins import Pins
from kvledger_vllm.requests import Requests
from kvledger_vllm.scan import RollingScan
from kvledger_vllm.steps import Steps
from kvledger_vllm.tokens import Tokens


class Entry(Enum):
    """What kind of entry point has ended."""

    SCHEDULE = auto()
    UPDATE = auto()
    OTHER = auto()


class Publisher:
    """The mirror of one scheduler: everything of its ledger, changed in publications."""

    def __init__(self, ledger: Ledger, scheduler: Any, notes: Notes) -> None:
        manager = scheduler.kv_cache_manager
        pool, managers = manager.block_pool, tuple(manager.coordinator.single_type_managers)
        self._ledger, self._scheduler, self._notes = ledger, scheduler, notes
        self._slots, self._values = Cells(ledger.slots), ledger.stats.values
        self._requests = Requests(ledger, reserve=ledger.limits.max_num_seqs)
        self._mirror = Mirror(ledger, pool)
        self._holdings = Holdings(ledger, self._requests, self._mirror, managers, pool)
        self._growth = Growth(ledger, self._requests, self._mirror, self._holdings.table(0), managers)
        self._pins = Pins(ledger, pool, getattr(scheduler, "deferred_frees", None))
        self._delayed = Delayed()
        self._tokens = Tokens(ledger, self._requests, scheduler, self._delayed)
        self._steps = Steps(ledger, self._delayed)
        self._scan = RollingScan(ledger, pool, self._mirror.free)
        self._lifecycle = Lifecycle(ledger, scheduler, notes, self._requests, self._holdings, self._tokens)
        stats = ledger.stats
        self._running, self._waiting = stats.gauge("running"), stats.gauge("waiting")
        self._evictions = stats.counter("evictions_total")
        notes.touched += [block for block in pool.blocks[1:] if block.ref_cnt or block.block_hash is not None]

    def publish(
        self,
        kind: Entry,
        began_ns: int,
        ended_ns: int,
        output: Any = None,
        throttled: bool = False,
        outputs: Any = None,
    ) -> None:
        """Publish what an entry point has changed.

        `output` is the scheduler output of a schedule or an update, `outputs` what an update hands out to clients.
        """
        ledger, notes = self._ledger, self._notes
        ledger.begin()
        if notes.quiet() and self._goes_on(kind, output):
            self._publish_usual(kind, began_ns, ended_ns, output, throttled, outputs)
            return
        if kind is Entry.UPDATE:
            self._tokens.updated(output, _handed_out(outputs))
        self._lifecycle.leave()
        released = self._change(kind, output)
        if kind is Entry.SCHEDULE:
            self._lifecycle.scheduled(output, throttled)
            self._steps.scheduled(began_ns, ended_ns)
        elif kind is Entry.UPDATE:
            self._steps.updated(began_ns, ended_ns)
        else:
            self._lifecycle.other()
        self._lifecycle.end(released)
        self._count()
        notes.clear()
        self._close(ended_ns)

    def _publish_usual(
        self, kind: Entry, began_ns: int, ended_ns: int, output: Any, throttled: bool, outputs: Any
    ) -> None:
        """Blocks and tables are done; nobody came, went or was admitted: only tokens, and the waits of who waits."""
        if kind is Entry.SCHEDULE:
            self._lifecycle.scheduled_again(output, throttled)
            self._steps.scheduled(began_ns, ended_ns)
        elif kind is Entry.UPDATE:
            self._tokens.updated(output, _handed_out(outputs))
            self._steps.updated(began_ns, ended_ns)
        else:
            self._lifecycle.other()
        notes = self._notes
        if notes.fresh:
            notes.fresh.clear()
        if notes.evictions:
            self._values[self._evictions] += notes.evictions
            notes.evictions = 0
        self._close(ended_ns)

    def _close(self, ended_ns: int) -> None:
        ledger, scheduler = self._ledger, self._scheduler
        # Not by `running`: when all is paused it is not empty, and no step is run.
        idle = not scheduler.has_requests()
        self._delayed.flush(ledger.now_ns, idle=idle)
        ledger.end(idle=idle)
        self._steps.published(ledger.now_ns - ended_ns)

    def flush(self) -> None:
        """Before the ledger is closed: count what was only noted."""
        self._delayed.flush(self._ledger.now_ns, idle=True)

    def _goes_on(self, kind: Entry, output: Any) -> bool:
        """Whether requests that run just go on: then their new blocks are in the ledger now. If not, nothing is."""
        fresh = self._notes.fresh
        if kind is not Entry.SCHEDULE:
            if not fresh and kind is Entry.OTHER:
                self._scan_some()
            return not fresh
        cached = output.scheduled_cached_reqs
        if output.scheduled_new_reqs or cached.resumed_req_ids:
            return False
        if fresh:
            found = self._growth.find(cached, fresh)
            if found is None:
                return False
            self._growth.apply(found)
        else:
            self._mirror.count()
        self._pins.sync(self._notes, {})
        self._scan_some()
        return True

    # -- blocks and tables ----------------------------------------------------------------------------------------

    def _candidates(self, kind: Entry, output: Any) -> tuple[list[str], set[str]]:
        """(requests whose tables grew, requests whose tables may have changed in any way)."""
        dirty = self._notes.dirty
        dirty.update(request.request_id for request, _ in self._notes.ending)
        if kind is not Entry.SCHEDULE:
            return [], dirty
        dirty.update(data.req_id for data in output.scheduled_new_reqs)
        cached = output.scheduled_cached_reqs
        dirty.update(cached.resumed_req_ids)
        grown = [i for i, new in zip(cached.req_ids, cached.new_block_ids, strict=True) if new is not None]
        return grown, dirty

    def _change(self, kind: Entry, output: Any) -> dict[int, int]:
        """Make any changes of blocks and tables. Returns how many blocks each slot gave up whose table began anew."""
        notes = self._notes
        self._lifecycle.arrive()
        if notes.all_cached:
            notes.touched += self._mirror.cached()
        plan = self._holdings.plan(*self._candidates(kind, output), self._scheduler.requests)
        if notes.touched or notes.fresh or plan:
            self._apply(self._mirror.look(notes.touched, notes.fresh), plan)
        else:
            self._mirror.count()
        self._pins.sync(notes, self._serials())
        # Only now: what was noted must be in the ledger before anything counts as changed behind the hooks.
        if kind is not Entry.UPDATE:
            self._scan_some()
        released = {slot: len(blocks) for slot, blocks in plan.cleared.items()}
        self._lifecycle.preempt(released)
        return released

    def _scan_some(self) -> None:
        if self._ledger.now_ns >= self._scan.due_ns and (wrong := self._scan.differing()):
            self._apply(self._mirror.look(wrong, []), Plan())

    def _apply(self, change: Change, plan: Plan) -> None:
        ledger, mirror = self._ledger, self._mirror
        mirror.stamp(plan.blocks())
        for slot in plan.slots():
            self._slots.changed_seq[slot] = ledger.seq
        mirror.begin(change)
        for slot in plan.cleared:
            self._tokens.lose(slot)
        self._holdings.clear(plan)
        mirror.allocate(change)
        self._holdings.extend(plan)
        for slot in plan.cleared:
            self._tokens.regain(slot)
        mirror.end(change)

    def _serials(self) -> dict[str, int]:
        slot_of, serial = self._requests.slot_of, self._slots.serial
        return {i: serial[slot_of[i]] for _, i in self._notes.popped if i in slot_of}

    def _count(self) -> None:
        scheduler, values = self._scheduler, self._values
        values[self._evictions] += self._notes.evictions
        values[self._running] = len(scheduler.running)
        values[self._waiting] = self._lifecycle.waiting


def _handed_out(outputs: Any) -> int:
    """How many requests an update hands something out for; -1 where this vLLM says it in other words."""
    try:
        return sum(len(of_client.outputs) for of_client in outputs.values())
    except (AttributeError, TypeError):
        return -1
