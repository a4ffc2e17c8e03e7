"""A Hypothesis machine drives the block side of the engine, and after every step the ledger equals a plain model.

What is compared is what a reader finds in the ledger: its audit has no contradiction, and every block, table, list,
pin and count is the model's. A second look proves that every block that changed was stamped.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from numpy.typing import NDArray

from kvledger import invariants
from kvledger.audit import Audit
from kvledger.limits import Limits
from kvledger.views import I32
from kvledger.words import BlockState, PinKind, ReleaseCause
from kvledger_engine.errors import ArenaFull, NotEnoughBlocks
from kvledger_engine.faults import FaultKind, FaultPlan
from tests.engine.blockmodel import BlockModel, Sequence
from tests.engine.cachekit import MAX_TOKENS, Kit, shared_memory, small_limits
from tests.reliability.promises import promised_findings

PICK = st.integers(0, 719720)
STEPS = LEAST_RULES = 40
LEASE_NS = 1 << 60
COUNTERS = {
    "evictions_total": "evictions",
    "allocation_failures_total": "failures",
    "cow_copies_total": "copies",
    "prefix_queried_tokens_total": "queried",
    "prefix_hit_tokens_total": "hit",
}
STAMPED = (
    "ref_count", "state", "group", "tenant", "owner", "prefix_hash", "filled_tokens", "allocated_ns", "share_clock",
    "share_since_ns", "index_slot", "evict_ticket",
)  # fmt: skip
CAUSES = [cause for cause in ReleaseCause if cause is not ReleaseCause.PREEMPTION]


class Contradiction(AssertionError):
    """The reader found something impossible in the ledger."""

    def __init__(self, suspects: list[invariants.Suspect]) -> None:
        super().__init__(f"{suspects}")
        self.kinds = {suspect.kind for suspect in suspects}


class CacheMachine(RuleBasedStateMachine):
    """Requests come, compute, fork, are preempted and cancelled; blocks are pinned; time passes."""

    limits: ClassVar[Limits] = small_limits()
    key_bits: ClassVar[int] = 64
    fault: ClassVar[FaultKind | None] = None
    examples: ClassVar[int] = 0
    long_examples: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        kind = type(self)
        kind.examples += 1
        plan = FaultPlan(kind.fault, seed=kind.examples) if kind.fault else None
        self.kit = Kit(memory=shared_memory(kind.limits), faults=plan, key_bits=kind.key_bits)
        limits = kind.limits
        self.model = BlockModel(
            capacity=limits.capacity_blocks,
            size=limits.groups[0].block_size_tokens,
            chunks=limits.arena_chunks,
            chunk_blocks=limits.chunk_blocks,
            pins=limits.pin_records,
            caching=limits.prefix_caching,
        )
        self.preempted: dict[int, Sequence] = {}
        self.pins: list[tuple[int, int]] = []
        self.complaints: list[str] = []
        self.rules_run = 0
        self.before = self._columns({})
        self.before_seq = self.kit.ledger.seq

    # -- choices --------------------------------------------------------------------------------------------------

    @property
    def live(self) -> list[int]:
        return sorted(self.model.sequences)

    @property
    def vacant(self) -> list[int]:
        used = self.model.sequences.keys() | self.preempted.keys()
        return [slot for slot in range(self.limits.max_requests) if slot not in used]

    def _expect(self, what: str, got: object, wanted: object) -> None:
        """Note a difference; it is told after the reader has had its say."""
        if got != wanted:
            self.complaints.append(f"{what}: got {got}, wanted {wanted}")

    # -- rules ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.vacant)
    @rule(bits=st.integers(0, 15), length=st.integers(1, 15), salt=st.integers(1, 2), tenant=st.integers(0, 2))
    def admit(self, bits: int, length: int, salt: int, tenant: int) -> None:
        slot = self.vacant[0]
        tokens = [bits >> (i // self.model.size) & 1 for i in range(length)]
        self.kit.ledger.begin()
        serial = self.kit.seat(slot, tenant=tenant)
        sequence = Sequence(serial, tenant, salt, tokens)
        if not self._admit(slot, sequence, new_tokens=1 + (bits * 5 + salt) % 6):
            self.kit.unseat(slot)
        self.kit.ledger.end()

    @precondition(lambda self: self.preempted)
    @rule(new=st.integers(0, 8))
    def admit_again(self, new: int) -> None:
        slot, sequence = next(iter(self.preempted.items()))
        self.kit.ledger.begin()
        if self._admit(slot, sequence, new_tokens=new):
            del self.preempted[slot]
        self.kit.ledger.end()

    def _admit(self, slot: int, sequence: Sequence, new_tokens: int) -> bool:
        given = self._write_tokens(slot, sequence)
        matched = self.kit.kv.match(slot, given, sequence.salt)
        self._expect("match", matched, len(self.model.hits(sequence)) * self.model.size)
        got = self.kit.kv.admit(slot, given, sequence.salt, new_tokens)
        self._expect("admit", got, self.model.admit(slot, sequence, new_tokens))
        return got is not None

    def _write_tokens(self, slot: int, sequence: Sequence) -> I32:
        self.kit.tokens[slot, : len(sequence.tokens)] = sequence.tokens
        return self.kit.tokens[slot, : len(sequence.tokens)]

    @precondition(lambda self: self.model.sequences)
    @rule(pick=PICK, advance=st.integers(0, 5), bits=st.integers(0, 63))
    def compute_some(self, pick: int, advance: int, bits: int) -> None:
        chosen = [slot for slot in self.live if pick >> slot & 1] or self.live[:1]
        self._step({slot: 1 + (advance + slot) % 6 for slot in chosen}, bits)

    @precondition(lambda self: self.model.sequences)
    @rule(bits=st.integers(0, 63))
    def decode_all(self, bits: int) -> None:
        self._step(dict.fromkeys(self.live, 1), bits)

    def _step(self, advance: dict[int, int], bits: int) -> None:
        after = {slot: self.model.sequences[slot].computed + tokens for slot, tokens in advance.items()}
        after = {slot: tokens for slot, tokens in after.items() if tokens <= MAX_TOKENS}
        for slot, tokens in after.items():
            sequence = self.model.sequences[slot]
            sequence.tokens += [bits >> slot & 1] * (tokens - len(sequence.tokens))
            self._write_tokens(slot, sequence)
        slots, ends = np.array(list(after), np.int32), np.array(list(after.values()), np.int32)
        self.kit.ledger.begin()
        needed = self.kit.kv.blocks_needed(slots, ends).tolist()
        self._expect("needed", needed, [self.model.needed(slot, tokens) for slot, tokens in after.items()])
        grown = self._grow(slots, ends)
        self._expect("grown", grown, self.model.grow(after))
        sources, targets = self.kit.kv.take_copies()
        self._expect("copies", list(zip(sources.tolist(), targets.tolist(), strict=True)), self.model.pending)
        self.kit.ledger.end()
        if grown and not self.complaints:
            self._compute(slots, ends, after)

    def _grow(self, slots: I32, ends: I32) -> bool:
        try:
            self.kit.kv.grow(slots, ends)
        except NotEnoughBlocks:
            return False
        return True

    def _compute(self, slots: I32, ends: I32, after: dict[int, int]) -> None:
        """The second half of a step; copies lie between two publications, so those are looked at in between."""
        if self.model.pending:
            self.the_ledger_equals_the_model()
        self.model.compute(after)
        self.kit.ledger.begin()
        self.kit.kv.copies_done()
        self.model.copies_done()
        salts = np.zeros(self.limits.max_requests, np.uint64)
        salts[slots] = [self.model.sequences[slot].salt for slot in after]
        self.kit.kv.commit(slots, ends, self.kit.tokens, salts)
        self.model.commit(after)
        self.kit.ledger.end()

    @precondition(lambda self: self.vacant and self._forkable())
    @rule(pick=PICK)
    def fork(self, pick: int) -> None:
        source, target = choose(self._forkable(), pick), self.vacant[0]
        parent = self.model.sequences[source]
        self.kit.ledger.begin()
        serial = self.kit.seat(target, tenant=parent.tenant)
        sequence = Sequence(serial, parent.tenant, parent.salt, parent.tokens[: parent.computed])
        done = self.model.fork(source, target, sequence)
        try:
            self.kit.kv.fork(source, target)
        except ArenaFull:
            self._expect("fork", False, done)
            self.kit.unseat(target)
        else:
            self._expect("fork", True, done)
        self.kit.ledger.end()

    def _forkable(self) -> list[int]:
        """Slots that hold no more blocks than their computed tokens need."""
        size = self.model.size
        return [
            slot for slot, s in self.model.sequences.items() if s.computed and len(s.table) == -(-s.computed // size)
        ]

    @precondition(lambda self: self.model.sequences)
    @rule(pick=PICK, cause=st.sampled_from(CAUSES))
    def release(self, pick: int, cause: ReleaseCause) -> None:
        slot = choose(self.live, pick)
        self.kit.ledger.begin()
        self._release(slot, cause)
        self.kit.unseat(slot)
        self.kit.ledger.end()

    @precondition(lambda self: self.model.sequences)
    @rule(pick=PICK)
    def preempt(self, pick: int) -> None:
        slot = choose(self.live, pick)
        self.kit.ledger.begin()
        self.preempted[slot] = self._release(slot, ReleaseCause.PREEMPTION)
        self.kit.ledger.end()

    def _release(self, slot: int, cause: ReleaseCause) -> Sequence:
        held = len(self.model.sequences[slot].table)
        self._expect("released", self.kit.kv.release(slot, cause=cause), held)
        sequence = self.model.release(slot)
        seconds = float(self.kit.slots.block_seconds[slot])
        same = math.isclose(seconds, sequence.block_seconds, abs_tol=1e-9)
        self._expect("block-seconds of a release", seconds if not same else None, None)
        return sequence

    @precondition(lambda self: self._pinnable())
    @rule(pick=PICK, other=PICK, kind=st.sampled_from(list(PinKind)[1:]))
    def pin(self, pick: int, other: int, kind: PinKind) -> None:
        numbers = [choose(self._pinnable(), pick), choose(self._pinnable(), other)]
        self.kit.ledger.begin()
        entries = self.kit.kv.pins.add(np.array(numbers), kind, 1, lease_ns=LEASE_NS)
        self.kit.ledger.end()
        pinned = self.model.pin(numbers)
        self._expect("pinned", (entries >= 0).tolist(), [pin is not None for pin in pinned])
        self.pins += [(entry, pin) for entry, pin in zip(entries.tolist(), pinned, strict=True) if pin is not None]

    def _pinnable(self) -> list[int]:
        return self.model.active + self.model.cached

    @precondition(lambda self: self.pins)
    @rule(pick=PICK)
    def unpin(self, pick: int) -> None:
        entry, pin = self.pins.pop(pick % len(self.pins))
        self.kit.ledger.begin()
        self.kit.kv.pins.drop(np.array([entry]))
        self.kit.ledger.end()
        self.model.unpin(pin)

    @rule(milliseconds=st.integers(1, 5000))
    def time_passes(self, milliseconds: int) -> None:
        self.kit.clock.advance(milliseconds * 1_000_000)
        self.model.advance(milliseconds / 1000)
        self.kit.ledger.publish_now()

    # -- what must hold -------------------------------------------------------------------------------------------

    @invariant()
    def the_ledger_equals_the_model_after_every_rule(self) -> None:
        self.the_ledger_equals_the_model()
        self.rules_run += 1

    def teardown(self) -> None:
        type(self).long_examples += self.rules_run > LEAST_RULES  # the first look comes before any rule

    def the_ledger_equals_the_model(self) -> None:
        audit = self.kit.reader.audit(self.kit.clock.now_ns())
        if suspects := invariants.suspects(audit):
            raise Contradiction(suspects)
        assert not audit.damage
        assert not self.complaints, self.complaints
        offsets, blocks = audit.tables.offsets.tolist(), audit.tables.blocks.tolist()
        tables = {slot: blocks[offsets[row] : offsets[row + 1]] for row, slot in enumerate(audit.slots.slot.tolist())}
        self._blocks_equal(audit)
        self._lists_equal(audit)
        self._slots_equal(audit, tables)
        self._counts_equal(audit)
        self._every_change_was_stamped(tables)
        if not self.model.pending:
            self._cells_read_back(tables)

    def _blocks_equal(self, audit: Audit) -> None:
        blocks, model = self.kit.blocks, self.model.blocks
        states = [self._state(number) for number in range(len(model))]
        assert audit.column("state").tolist() == states
        assert audit.column("ref_count").tolist() == [block.references for block in model]
        assert audit.column("owner").tolist() == [block.owner for block in model]
        assert audit.column("tenant").tolist() == [block.tenant for block in model]
        assert audit.column("filled_tokens").tolist() == [block.filled for block in model]
        assert (blocks.prefix_hash != 0).tolist() == [block.content is not None for block in model]
        indexed = self.kit.ledger.index.block
        assert sorted(indexed[indexed >= 0].tolist()) == sorted(self.model.index.values())
        assert (blocks.allocated_ns <= self.kit.ledger.now_ns).all()

    def _state(self, number: int) -> BlockState:
        if self.model.blocks[number].references:
            return BlockState.ACTIVE
        return BlockState.FREE if self.model.blocks[number].content is None else BlockState.CACHED

    def _lists_equal(self, audit: Audit) -> None:
        assert audit.free.tolist() == self.model.free
        assert self.kit.eviction_order() == self.model.cached
        assert sorted(audit.pins.block.tolist()) == sorted(self.model.pins.values())
        assert audit.control["free_chunk_count"] == self.model.free_chunks()

    def _slots_equal(self, audit: Audit, tables: dict[int, list[int]]) -> None:
        slots = audit.slots
        rows = {slot: row for row, slot in enumerate(tables)}
        assert rows.keys() == self.model.sequences.keys() | self.preempted.keys()
        for slot, sequence in (self.model.sequences | self.preempted).items():
            row = rows[slot]
            assert tables[slot] == sequence.table
            found = (slots.serial[row], slots.computed_tokens[row], slots.own_from_token[row], slots.peak_blocks[row])
            assert found == (sequence.serial, sequence.computed, sequence.own_from, sequence.peak)
            live = self.kit.kv.pool.clocks(np.array(sequence.table, np.intp)).sum() - slots.share_base[row]
            assert math.isclose(slots.block_seconds[row] + live, sequence.block_seconds, abs_tol=1e-9)

    def _counts_equal(self, audit: Audit) -> None:
        model, pool, counts = self.model, self.kit.kv.pool, self.model.counts
        assert pool.free_blocks == len(model.free)
        assert pool.cached_blocks == len(model.cached)
        assert pool.active_blocks == len(model.active)
        assert pool.free_blocks + pool.cached_blocks + pool.active_blocks == self.limits.capacity_blocks
        assert audit.control["index_used"] == len(model.index)
        assert audit.control["overflows"] == counts["overflows"]
        for name, count in COUNTERS.items():
            assert self.kit.counter(name) == counts[count], name
        assert self.kit.counter("cow_bytes_total") == counts["copies"] * self.limits.groups[0].block_bytes
        charged = np.bincount([model.blocks[number].tenant for number in model.active], minlength=4)
        assert self.kit.ledger.stats.tenant_blocks.tolist() == charged.tolist()
        seconds = self.kit.ledger.stats.tenant_counter("block_seconds_total")
        for tenant in range(3):
            assert math.isclose(seconds[tenant], model.tenant_seconds.get(tenant, 0.0), abs_tol=1e-9)
        references = [self.kit.histogram("block_reference_lifetime", shared=word)[0] for word in ("false", "true")]
        assert sum(references) == counts["released"]

    def _every_change_was_stamped(self, tables: dict[int, list[int]]) -> None:
        """A block whose arrays or table entries differ from those of the last look carries a later publication."""
        after = self._columns(tables)
        changed = (after != self.before).any(axis=0)
        assert (self.kit.blocks.changed_seq[changed] > self.before_seq).all()
        self.before, self.before_seq = after, self.kit.ledger.seq

    def _columns(self, tables: dict[int, list[int]]) -> NDArray[np.float64]:
        """Everything about each block that a stamp must precede: one column a block. Tables are bits of one row."""
        named = np.zeros(self.limits.capacity_blocks)
        for slot, table in tables.items():
            named[table] += 1 << slot
        return np.array([getattr(self.kit.blocks, name) for name in STAMPED] + [named], np.float64)

    def _cells_read_back(self, tables: dict[int, list[int]]) -> None:
        """Through its table every request reads what it alone could have written there."""
        for slot, sequence in self.model.sequences.items():
            cells = [cell for number in tables[slot] for cell in self.model.blocks[number].cells]
            assert cells[: sequence.computed] == sequence.cells(sequence.computed), f"slot {slot} reads a foreign cell"


def choose(slots: list[int], pick: int) -> int:
    """One of `slots`."""
    return slots[pick % len(slots)]


class CollidingCacheMachine(CacheMachine):
    """Keys of 8 bits: different prefixes under one key are the rule."""

    key_bits = 8


class CrampedCacheMachine(CacheMachine):
    """Too few blocks, chunks, pins and key bits: refusals, evictions, overflows and collisions all the time."""

    key_bits = 2
    limits = small_limits(capacity=12, logical_blocks=2, pins=1)


class PlainCacheMachine(CacheMachine):
    """No prefix caching: forks and preemption only."""

    limits = small_limits(caching=False)


MACHINES = (CacheMachine, CollidingCacheMachine, CrampedCacheMachine, PlainCacheMachine)


def equals_the_model(machine: type[CacheMachine], examples: int) -> None:
    machine.long_examples = 0
    wanted = settings(max_examples=examples, stateful_step_count=STEPS, database=None)
    run_state_machine_as_test(machine, settings=wanted, _min_steps=LEAST_RULES)
    assert machine.long_examples >= examples


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_the_ledger_equals_the_model_after_every_step(machine: type[CacheMachine]) -> None:
    equals_the_model(machine, 80)


@pytest.mark.drill
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", MACHINES)
def test_the_ledger_equals_the_model_for_long(machine: type[CacheMachine]) -> None:
    equals_the_model(machine, 600)


@pytest.mark.parametrize("kind", list(FaultKind))
def test_every_fault_makes_the_machine_fail_with_the_finding_it_shows_as(kind: FaultKind) -> None:
    machine = type("FaultyCacheMachine", (CacheMachine,), {"fault": kind, "examples": 0})
    once = settings(
        max_examples=300,
        stateful_step_count=STEPS,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )
    with pytest.raises(Contradiction) as failure:
        run_state_machine_as_test(machine, settings=once)
    assert failure.value.kinds <= promised_findings()[kind.value]
