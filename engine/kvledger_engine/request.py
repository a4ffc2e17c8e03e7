"""The table of requests: slots of the ledger, the ids behind them, and the tokens, which never leave this process.

Owns who sits in which slot and which state may follow which. Every sequence has a slot of its own; the n sequences of
one request are reserved together, the first of them leads until the others are forked from it. Holds no block.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvledger.layout import CONTROL_INDEX
from kvledger.request_id import kept_id
from kvledger.views import F64, I32, U64
from kvledger.words import RequestClass, RequestState
from kvledger.writer import Ledger
from kvledger_engine.batch import F32
from kvledger_engine.config import EngineConfig
from kvledger_engine.messages import NewRequest
from kvledger_engine.prefixkeys import prefix_salt
from kvledger_engine.quotas import share_scope
from kvledger_engine.stops import StopTokens

_FREE_SLOTS, _NEXT_SERIAL = CONTROL_INDEX["free_slot_count"], CONTROL_INDEX["next_serial"]
_WORD = (1 << 64) - 1

_LEGAL = np.zeros((len(RequestState), len(RequestState)), bool)
for _before, _after in (
    (RequestState.FINISHED, RequestState.WAITING),
    (RequestState.WAITING, RequestState.RUNNING),
    (RequestState.WAITING, RequestState.FINISHING),
    (RequestState.RUNNING, RequestState.PREEMPTED),
    (RequestState.RUNNING, RequestState.FINISHING),
    (RequestState.PREEMPTED, RequestState.RUNNING),
    (RequestState.PREEMPTED, RequestState.FINISHING),
    (RequestState.RUNNING, RequestState.SWAPPED),
    (RequestState.SWAPPED, RequestState.RUNNING),
    (RequestState.SWAPPED, RequestState.PREEMPTED),
    (RequestState.SWAPPED, RequestState.FINISHING),
    (RequestState.FINISHING, RequestState.FINISHED),
):
    _LEGAL[_before, _after] = True

# What a new occupant must not inherit from the slot's last one. Table and chunk fields are the tables' own.
_CLEARED = (
    "finish_reason", "cancel_cause", "computed_tokens", "output_tokens", "hit_tokens", "own_from_token", "peak_blocks",
    "preemptions", "first_block_ns", "first_token_ns", "last_token_ns", "finishing_ns", "block_seconds", "share_base",
    "wait_base", "wait_seconds",
)  # fmt: skip


class RequestTable:
    """Request slots and everything private about their occupants, indexed by slot.

    `tokens` I32[slots, max_model_len_tokens] holds prompt and output; untouched rows take no memory. `computed_before`
    is how many tokens a preempted sequence had computed. `awaits_fork` marks sequences that hold nothing until the
    prompt of their leader, in slot `leaders`, is complete.
    """

    def __init__(self, config: EngineConfig, ledger: Ledger) -> None:
        size = ledger.limits.max_requests
        self._ledger, self._slots, self._quotas = ledger, ledger.slots, config.quotas
        self._kv_format = config.kv_format
        self.tokens: I32 = np.zeros((size, config.max_model_len_tokens), np.int32)
        self.salts: U64 = np.zeros(size, np.uint64)
        self.seeds: U64 = np.zeros(size, np.uint64)
        self.temperatures: F32 = np.zeros(size, np.float32)
        self.top_ps: F32 = np.ones(size, np.float32)
        self.logprobs: I32 = np.full(size, -1, np.int32)
        self.run_timeouts_seconds: F64 = np.full(size, np.inf)
        self.computed_before: I32 = np.zeros(size, np.int32)
        self.recomputing: set[int] = set()
        """Slots that have tokens in `computed_before`."""
        self.awaits_fork: NDArray[np.bool_] = np.zeros(size, bool)
        self.leaders: I32 = np.zeros(size, np.int32)
        self.stop_tokens = StopTokens()
        self.request_ids: list[str] = [""] * size
        self.indices: list[int] = [0] * size
        self.unforked: dict[int, I32] = {}
        """Leader -> the sequences to be forked from it."""
        self.cut: set[int] = set()
        """Slots whose distribution is cut by `top_ps`."""
        self.scored: set[int] = set()
        """Slots that want the scores of their tokens: with the `logprobs` likeliest of each."""
        self.live_by_class = [0] * len(RequestClass)
        """Sequences that have not ended, one number per `RequestClass`."""
        self._live: dict[str, list[int]] = {}

    @property
    def free_slots(self) -> int:
        """Slots without an occupant."""
        return int(self._ledger.control[_FREE_SLOTS])

    def is_live(self, request_id: str) -> bool:
        """Whether some sequence of the request has not ended."""
        return request_id in self._live

    def slots_of(self, request_id: str) -> I32:
        """The request's sequences that have not ended, the leader first; empty for an unknown id."""
        return np.array(self._live.get(request_id, ()), np.int32)

    def live_slots(self) -> I32:
        """Every sequence that has not ended."""
        return np.array([slot for slots in self._live.values() for slot in slots], np.int32)

    def group(self, leader: int) -> I32:
        """A sequence together with those that are to be forked from it."""
        rest = self.unforked.get(leader)
        return np.array([leader], np.int32) if rest is None else np.concatenate((np.array([leader], np.int32), rest))

    def sequence(self, slot: int) -> I32:
        """All tokens of a sequence: prompt, then output. A view."""
        return self.tokens[slot, : int(self._slots.prompt_tokens[slot]) + int(self._slots.output_tokens[slot])]

    def next_serial(self) -> int:
        """Take one serial: the identity of a request, never used again."""
        serial = int(self._ledger.control[_NEXT_SERIAL])
        self._ledger.control[_NEXT_SERIAL] = serial + 1
        return serial

    def open(self, request: NewRequest, *, tenant_column: int, arrived_ns: int) -> I32:
        """Seat an accepted request: `n` slots, state WAITING, the leader first. There must be that many free slots."""
        taken = self._take_slots(request.n)
        slots = self._slots
        self.move(taken, RequestState.WAITING)
        for name in _CLEARED:
            getattr(slots, name)[taken] = 0
        serials = [self.next_serial() for _ in range(request.n)]
        slots.parent_serial[taken] = serials[0]
        slots.parent_serial[taken[0]] = 0
        slots.tenant[taken] = tenant_column
        kind = RequestClass[request.request_class.upper()]
        slots.request_class[taken] = kind
        self.live_by_class[kind] += request.n
        slots.prompt_tokens[taken], slots.max_tokens[taken] = len(request.prompt), request.max_tokens
        slots.arrived_ns[taken] = slots.queued_ns[taken] = arrived_ns
        self._name(taken, request.request_id)
        self._keep_private(taken, request)
        # The serial comes last: a slot with one is complete.
        slots.serial[taken] = serials
        return taken

    def _take_slots(self, count: int) -> I32:
        control = self._ledger.control
        left = int(control[_FREE_SLOTS]) - count
        assert left >= 0, f"{count} slots wanted, {left + count} free"
        taken = np.array(self._slots.free_slots[left : left + count][::-1])
        control[_FREE_SLOTS] = left
        return taken

    def _name(self, taken: I32, request_id: str) -> None:
        slots, kept = self._slots, kept_id(request_id)
        slots.id_hash[taken], slots.id_head[taken], slots.id_tail[taken] = kept
        self._live[request_id] = taken.tolist()
        for index, slot in enumerate(taken.tolist()):
            self.request_ids[slot], self.indices[slot] = request_id, index

    def _keep_private(self, taken: I32, request: NewRequest) -> None:
        self.tokens[taken, : len(request.prompt)] = request.prompt
        scope = share_scope(self._quotas, request.tenant)
        self.salts[taken] = prefix_salt(request.salt, scope=scope, kv_format=self._kv_format)
        self.seeds[taken] = [(request.seed + index) & _WORD for index in range(request.n)]
        self.temperatures[taken] = request.temperature
        self.top_ps[taken] = request.top_p
        self.logprobs[taken] = -1 if request.logprobs is None else request.logprobs
        self.run_timeouts_seconds[taken] = (
            np.inf if request.run_timeout_seconds is None else request.run_timeout_seconds
        )
        if request.top_p < 1:
            self.cut.update(taken.tolist())
        if request.logprobs is not None:
            self.scored.update(taken.tolist())
        self.computed_before[taken] = 0
        self.recomputing.difference_update(taken.tolist())
        self.awaits_fork[taken] = True
        self.awaits_fork[taken[0]] = False
        self.leaders[taken] = taken[0]
        if request.n > 1:
            self.unforked[int(taken[0])] = taken[1:]
        self.stop_tokens.keep(taken, request.stop_tokens)

    def move(self, slots: I32, state: RequestState) -> None:
        """Change the state of slots, stamped first. Only legal transitions; anything else is our own bug."""
        before = self._slots.state[slots]
        assert _LEGAL[before, state].all(), f"states {before.tolist()} of slots {slots.tolist()} -> {state.word}"
        self._slots.changed_seq[slots] = self._ledger.seq_value
        self._slots.state[slots] = state

    def forked(self, leader: int) -> I32:
        """Note that the sequences waiting for `leader` have their blocks; returns them."""
        rest = self.unforked.pop(leader)
        self.awaits_fork[rest] = False
        return rest

    def close(self, slots: I32) -> None:
        """Empty the slots of sequences that hold nothing any more and give them back."""
        self.move(slots, RequestState.FINISHED)
        self._slots.serial[slots] = 0
        for slot in slots.tolist():
            self.live_by_class[self._slots.request_class.item(slot)] -= 1
            self._forget(slot)
        used = int(self._ledger.control[_FREE_SLOTS])
        self._slots.free_slots[used : used + len(slots)] = slots
        self._ledger.control[_FREE_SLOTS] = used + len(slots)

    def _forget(self, slot: int) -> None:
        live = self._live[self.request_ids[slot]]
        live.remove(slot)
        if not live:
            del self._live[self.request_ids[slot]]
        self.unforked.pop(slot, None)
        self.stop_tokens.forget(slot)
        self.cut.discard(slot)
        self.scored.discard(slot)
        self.request_ids[slot] = ""
