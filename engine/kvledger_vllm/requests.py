"""Who sits in which request slot. Owns identity, state and the columns that a request brings with it; holds no block.

More requests may wait than the ledger has slots: those sit down when one leaves, and a request that runs always finds
a slot, since the last ones are kept for it.
"""

from __future__ import annotations

from typing import Any

from kvledger.layout import CONTROL_INDEX
from kvledger.request_id import kept_id
from kvledger.words import Event, RequestState
from kvledger.writer import Ledger
from kvledger_vllm.arrivals import Arrival
from kvledger_vllm.cells import Cells
from kvledger_vllm.errors import InstrumentError

_FREE_SLOTS, _NEXT_SERIAL = CONTROL_INDEX["free_slot_count"], CONTROL_INDEX["next_serial"]
_MOST_TOKENS = (1 << 31) - 1
# What a new occupant must not inherit from the slot's last one. Table and chunk fields are the tables' own.
_CLEARED = (
    "parent_serial", "request_class", "finish_reason", "cancel_cause", "computed_tokens", "output_tokens", "hit_tokens",
    "own_from_token", "peak_blocks", "preemptions", "first_block_ns", "first_token_ns", "last_token_ns",
    "finishing_ns", "block_seconds", "share_base", "wait_base", "wait_seconds",
)  # fmt: skip


class Requests:
    """Slots of live requests by vLLM's request id. `reserve` slots are kept for requests that run."""

    def __init__(self, ledger: Ledger, *, reserve: int) -> None:
        self._ledger, self._slots, self._reserve = ledger, Cells(ledger.slots), reserve
        self.slot_of: dict[str, int] = {}
        self.lost_tokens: dict[int, int] = {}
        """Slot -> tokens that a preempted request had computed."""
        self._standing: dict[str, tuple[Arrival, int]] = {}
        self._columns: list[Any] = [getattr(self._slots, name) for name in _CLEARED]
        self._words = ledger.control.data

    @property
    def standing(self) -> int:
        """Requests without a slot."""
        return len(self._standing)

    def knows(self, request_id: str) -> bool:
        """Whether a request is here, with a slot or without."""
        return request_id in self.slot_of or request_id in self._standing

    def arrive(self, arrival: Arrival) -> int | None:
        """A request that is not known: its slot, or None where none can be spared for somebody who waits."""
        if self._words[_FREE_SLOTS] <= self._reserve:
            self._standing[arrival.request_id] = (arrival, self._ledger.now_ns)
            self._ledger.overflow()
            return None
        return self._seat(arrival, self._ledger.now_ns)

    def require(self, request_id: str) -> int:
        """The slot of a request that runs or holds blocks; a standing one sits down now.

        Raises `InstrumentError` for one that never arrived.
        """
        slot = self.slot_of.get(request_id)
        if slot is None:
            if request_id not in self._standing:
                raise InstrumentError("a request runs or holds blocks that was never seen to arrive")
            slot = self._seat(*self._standing.pop(request_id))
        return slot

    def next_standing(self) -> int | None:
        """Seat the longest standing request if a slot can be spared now; its slot."""
        if not self._standing or self._words[_FREE_SLOTS] <= self._reserve:
            return None
        return self._seat(*self._standing.pop(next(iter(self._standing))))

    def forget_standing(self, request_id: str) -> Arrival | None:
        """A standing request has ended: as it came, None where there is none."""
        arrival, _ = self._standing.pop(request_id, (None, 0))
        return arrival

    def _seat(self, arrival: Arrival, queued_ns: int) -> int:
        control, slots = self._words, self._slots
        left = control[_FREE_SLOTS] - 1
        if left < 0:
            raise InstrumentError(f"all {len(slots.serial)} request slots are in use: set KVLEDGER_MAX_REQUESTS higher")
        slot = int(slots.free_slots[left])
        control[_FREE_SLOTS] = left
        self.move(slot, RequestState.WAITING)
        for column in self._columns:
            column[slot] = 0
        slots.tenant[slot] = self._ledger.tenant_column(arrival.tenant)
        slots.prompt_tokens[slot] = min(arrival.prompt_tokens, _MOST_TOKENS)
        slots.max_tokens[slot] = min(arrival.max_tokens, _MOST_TOKENS)
        slots.arrived_ns[slot], slots.queued_ns[slot] = arrival.arrived_ns, queued_ns
        slots.id_hash[slot], slots.id_head[slot], slots.id_tail[slot] = kept_id(arrival.request_id)
        serial = control[_NEXT_SERIAL]
        control[_NEXT_SERIAL] = serial + 1
        # The serial comes last: a slot with one is complete.
        slots.serial[slot] = serial
        self.slot_of[arrival.request_id] = slot
        self._ledger.event(Event.ARRIVED, serial)
        return slot

    def move(self, slot: int, state: RequestState) -> None:
        """Change the state of a slot, stamped first."""
        self._slots.changed_seq[slot] = self._ledger.seq
        self._slots.state[slot] = state

    def leave(self, request_id: str) -> None:
        """The request holds nothing any more: its slot is free."""
        slot = self.slot_of.pop(request_id)
        self.lost_tokens.pop(slot, None)
        self.move(slot, RequestState.FINISHED)
        self._slots.serial[slot] = 0
        used = self._words[_FREE_SLOTS]
        self._slots.free_slots[used] = slot
        self._words[_FREE_SLOTS] = used + 1
