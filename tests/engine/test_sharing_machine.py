"""A Hypothesis machine drives an engine with budgets; whatever comes, every promise to every tenant is kept.

What is looked at is the ledger, after every publication and while every step computes, when what a schedule decided is
published and nothing has come back yet.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from kvledger.snapshot import Sample
from kvledger.words import RequestClass, RequestState, WaitCause
from kvledger_engine.batch import Batch
from kvledger_engine.messages import NewRequest
from kvledger_engine.quotafile import parse_quotas
from kvledger_engine.quotas import Quotas
from tests.engine.rig import STEP_NS, VOCABULARY, Rig, expected, request
from tests.engine.test_waits import waits_by_clocks, waits_by_events

SIZE, CAPACITY = 4, 20
QUOTAS = parse_quotas(
    {
        "tenants": {
            "kept": {"reserved_blocks": 6, "priority": -1, "weight": 0.5},
            "capped": {"max_blocks": 7, "weight": 2},
            "both": {"reserved_blocks": 3, "max_blocks": 9, "max_waiting": 4, "share_group": "friends"},
            "friend": {"share_group": "friends"},
        },
        "default": {"max_blocks": 10},
        "classes": {
            "interactive": {"max_context": 16, "step_tokens": 6},
            "batch": {"reuse_window": 3, "step_tokens": 9},
        },
    }
)
TENANTS = (*QUOTAS.tenants, "stranger")
GAVE_WAY = (RequestState.PREEMPTED, RequestState.SWAPPED)
OF_THE_ENGINE = (WaitCause.BATCH_SLOTS, WaitCause.TOKEN_BUDGET, WaitCause.CLASS_BUDGET)


class Look:
    """What the ledger shows of tenants, requests and their waits, by the tests' own sums."""

    def __init__(self, rig: Rig, quotas: Quotas) -> None:
        self.sample: Sample = rig.sample()
        self.now_ns = rig.clock.now_ns()
        slots = self.sample.slots
        names = [name.decode() for name in rig.ledger.tenants.name.tolist()]
        self.names = [names[column] for column in slots.tenant.tolist()]
        self.causes = self.sample.wait_causes()
        stats = self.sample.stats
        blocks = (stats.gauge("free_blocks") or 0, stats.gauge("cached_blocks") or 0)
        self.available = int(blocks[0] + blocks[1])
        self.held = {name: int(stats.tenant_blocks.get(name, 0)) for name in {*names, *TENANTS} if name}
        self.lengths = slots.prompt_tokens + slots.output_tokens
        self.promised: Counter[str] = Counter()
        for row, name in enumerate(self.names):
            if slots.state[row] == RequestState.RUNNING and slots.table_blocks[row, 0]:
                self.promised[name] += max(0, self.blocks_of(row) - int(slots.table_blocks[row, 0]))
        self.quotas = quotas

    def blocks_of(self, row: int) -> int:
        return -(-int(self.lengths[row]) // SIZE)

    def ceiling(self, name: str) -> int:
        return self.quotas.ceiling_blocks(self.quotas.of(name), CAPACITY)

    def nobody_is_beyond_its_ceiling(self) -> None:
        beyond = {name: held for name, held in self.held.items() if held > self.ceiling(name)}
        assert not beyond, f"held {self.held}"

    def what_is_reserved_can_be_taken_at_once(self) -> None:
        unheld = {name: max(0, quota.reserved_blocks - self.held[name]) for name, quota in self.quotas.tenants.items()}
        assert sum(unheld.values()) <= self.available, f"{self.available} can be taken, unheld {unheld}"

    def causes_are_true(self, heads: list[int]) -> None:
        waiting = {WaitCause(cause) for cause in self.causes.tolist() if cause >= 0}
        rows = {int(slot): row for row, slot in enumerate(self.sample.slots.slot.tolist())}
        for row, cause in enumerate(self.causes.tolist()):
            if cause == WaitCause.TENANT_QUOTA:
                assert self.held[self.names[row]] + self.promised[self.names[row]] > 0, "at quota with nothing held"
            if cause == WaitCause.CLASS_BUDGET:
                kind = RequestClass(int(self.sample.slots.request_class[row])).word
                assert self.quotas.policy(kind).step_tokens is not None
            if cause == WaitCause.FAIR_SHARE:
                assert waiting & {WaitCause.POOL, WaitCause.BATCH_SLOTS, WaitCause.TOKEN_BUDGET}, "whose turn is it?"
        for slot in heads:
            self._head_waits_for(rows[slot])

    def _gave_way_now(self, row: int) -> bool:
        """It ran until this schedule and waits for the next, which looks at it first: for `preemption`, as is true."""
        slots, now_ns = self.sample.slots, self.now_ns
        gave_way = bool(slots.state[row] in GAVE_WAY and slots.queued_ns[row] == now_ns)
        return gave_way and self.causes[row] == WaitCause.PREEMPTION

    def _head_waits_for(self, row: int) -> None:
        """Of a lane's head more can be said than of those behind it."""
        if self._gave_way_now(row):
            return
        name, needed = self.names[row], self.blocks_of(row)
        held, cause = self.held[name] + self.promised[name], WaitCause(int(self.causes[row]))
        if held + needed <= self.quotas.of(name).reserved_blocks:
            assert cause in OF_THE_ENGINE, f"{name} waits for {cause.word} with {held} of its reservation held"
        if cause is WaitCause.TENANT_QUOTA:
            assert held + needed > self.ceiling(name), f"{name} holds {held}, needs {needed}"


class SharingMachine(RuleBasedStateMachine):
    """Requests of all tenants and classes come, run, are cancelled; time passes."""

    quotas: ClassVar[Quotas] = QUOTAS
    watermark: ClassVar[int] = 0
    swap_blocks: ClassVar[int] = 0
    seen: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(
            capacity_blocks=CAPACITY,
            block_size_tokens=SIZE,
            max_num_seqs=5,
            max_num_batched_tokens=14,
            max_model_len_tokens=40,
            max_waiting=99,
            admission_watermark_blocks=self.watermark,
            quotas=self.quotas,
            preemption="swap" if self.swap_blocks else "recompute",
            swap_blocks=self.swap_blocks,
        )
        execute = self.rig.loop._execute

        def look_and_execute(batch: Batch) -> object:
            self.while_a_step_computes(batch)
            return execute(batch)

        self.rig.loop._execute = look_and_execute  # type: ignore[assignment]
        self.taken: list[NewRequest] = []
        self.cancelled: set[str] = set()

    @rule(
        tenant=st.sampled_from(TENANTS),
        kind=st.sampled_from(RequestClass.words()),
        prompt=st.integers(1, 24),
        tokens=st.integers(1, 16),
        n=st.sampled_from([1, 1, 1, 2]),
        alike=st.integers(0, 2),
    )
    def submit(self, tenant: str, kind: str, prompt: int, tokens: int, n: int, alike: int) -> None:
        new = request(
            f"r{len(self.taken)}-{len(self.rig.outcome.refused)}",
            [(7 * i + alike) % VOCABULARY for i in range(prompt)],
            tokens,
            tenant=tenant,
            request_class=kind,
            n=n,
            temperature=1.0,
        )
        refused = self.rig.submit(new)
        if refused:
            type(self).seen[refused[0].reason] += 1
            self._refusal_is_true(new, refused[0].reason)
        else:
            self.taken.append(new)

    def _refusal_is_true(self, new: NewRequest, reason: str) -> None:
        quota, policy = self.quotas.of(new.tenant), self.quotas.policy(new.request_class)
        total = len(new.prompt) + new.max_tokens
        if reason == "context_too_long":
            assert total > min(quota.max_context or 40, policy.max_context or 40)
        elif reason == "exceeds_quota":
            assert -(-total // SIZE) * new.n > self.quotas.ceiling_blocks(quota, CAPACITY)
        elif reason == "tenant_quota":
            assert quota.max_waiting is not None
        else:
            assert reason == "exceeds_pool"

    @rule(times=st.integers(1, 4))
    def step(self, times: int) -> None:
        self.rig.step(times)

    @rule(pick=st.integers(0, 40))
    def cancel(self, pick: int) -> None:
        if self.taken:
            name = self.taken[pick % len(self.taken)].request_id
            self.cancelled.add(name)
            self.rig.cancel(name)

    @rule(late_ns=st.integers(1, 5 * STEP_NS))
    def time_passes(self, late_ns: int) -> None:
        self.rig.clock.advance(late_ns)
        self.rig.ledger.publish_now(idle=not self.rig.loop._is_active)

    # -- what must hold -------------------------------------------------------------------------------------------

    def while_a_step_computes(self, batch: Batch) -> None:
        look = Look(self.rig, self.quotas)
        look.nobody_is_beyond_its_ceiling()
        look.what_is_reserved_can_be_taken_at_once()
        look.causes_are_true([int(lane.head[0]) for lane in self.rig.loop._queue.lanes()])
        type(self).seen.update(WaitCause(cause).word for cause in look.causes.tolist() if cause >= 0)
        for kind in RequestClass:
            most, prompts = self.quotas.policy(kind.word).step_tokens, batch.counts > 1
            mine = self.rig.ledger.slots.request_class[batch.slots] == kind
            assert most is None or int(batch.counts[mine & prompts].sum()) <= most

    @invariant()
    def the_ledger_is_sound(self) -> None:
        self.rig.check()
        look = Look(self.rig, self.quotas)
        look.nobody_is_beyond_its_ceiling()
        look.what_is_reserved_can_be_taken_at_once()

    @invariant()
    def waits_by_cause_add_up(self) -> None:
        wanted, found = waits_by_events(self.rig), waits_by_clocks(self.rig)
        for serial, seconds in found.items():
            assert seconds == pytest.approx(wanted[serial], abs=1e-9), serial

    def teardown(self) -> None:
        alone = sum(r.n * (len(r.prompt) + r.max_tokens) for r in self.taken)
        self.rig.finish(within_steps=6 * alone + 100)
        for key, tokens in expected(self.taken).items():
            got = self.rig.outcome.tokens.get(key, [])
            assert got == (tokens[: len(got)] if key[0] in self.cancelled else tokens), key
        self.rig.check_empty()
        observed = sum(
            self.rig.observed("wait", cause=cause.word, **{"class": kind.word})[1]
            for cause in WaitCause
            for kind in RequestClass
        )
        assert observed == pytest.approx(sum(waits_by_clocks(self.rig).values()), abs=1e-8)


class WatermarkedSharingMachine(SharingMachine):
    """Blocks are kept back for what runs outside of its reservation."""

    watermark = 3


class UnreservedSharingMachine(SharingMachine):
    """Weights and classes alone."""

    quotas = parse_quotas(
        {"tenants": {"kept": {"weight": 3}, "capped": {"priority": 1}}, "default": {"share_group": "all"}}
    )


class SwappingSharingMachine(SharingMachine):
    """Whoever gives way is swapped out, while there is room for it."""

    swap_blocks = 14


MACHINES = (SharingMachine, WatermarkedSharingMachine, UnreservedSharingMachine, SwappingSharingMachine)


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_every_promise_to_every_tenant_is_kept_whatever_comes(machine: type[SharingMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=50, stateful_step_count=40, deadline=None))


@pytest.mark.drill
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", MACHINES)
def test_every_promise_is_kept_for_long(machine: type[SharingMachine]) -> None:
    machine.seen = Counter()
    run_state_machine_as_test(machine, settings=settings(max_examples=400, stateful_step_count=60, deadline=None))
    wanted = {"pool", "fair_share", "batch_slots", "token_budget", "step"}
    if machine.quotas is QUOTAS:
        wanted |= {"tenant_quota", "class_budget", "exceeds_quota", "context_too_long"}
    assert wanted <= machine.seen.keys() | {"step"}, machine.seen


def test_the_columns_of_named_tenants_come_first() -> None:
    rig = Rig(quotas=QUOTAS, capacity_blocks=CAPACITY)
    assert rig.sample().tenants[: len(QUOTAS.tenants)] == tuple(QUOTAS.tenants)
