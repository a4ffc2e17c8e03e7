"""Admission with budgets: a lane for every tenant and class, turns between them, and a cause for each that waits.

Owns what one schedule knows of them. Blocks are the cache's; whose turn it is, `turns`' and `fairshare`'s.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kvledger.views import I32
from kvledger.words import RequestClass, RequestState, WaitCause
from kvledger.writer import Ledger
from kvledger_engine.admitting import Admission, Parts
from kvledger_engine.batch import Rows
from kvledger_engine.budgets import Budgets, Standing
from kvledger_engine.config import EngineConfig
from kvledger_engine.fairshare import FairShare
from kvledger_engine.giveway import GiveWay
from kvledger_engine.lanes import Lane
from kvledger_engine.quotas import ClassPolicy
from kvledger_engine.refusals import Refusals
from kvledger_engine.reuse import ReuseWindow
from kvledger_engine.turns import count_passes, in_turn
from kvledger_engine.visit import Visit

_ENGINE_WIDE = (WaitCause.BATCH_SLOTS, WaitCause.TOKEN_BUDGET, WaitCause.POOL)
"""What stops the lanes behind, too: nobody passes a head for which there is no room yet."""


class SharedAdmission(Admission):
    """Admits lane by lane. `policies` says how each class is treated."""

    def __init__(
        self,
        config: EngineConfig,
        ledger: Ledger,
        parts: Parts,
        *,
        budgets: Budgets,
        fair: FairShare,
        policies: Mapping[RequestClass, ClassPolicy],
    ) -> None:
        super().__init__(config, ledger, parts)
        self._budgets, self._fair, self._policies = budgets, fair, [policies[kind] for kind in RequestClass]
        self._give_way = GiveWay(
            self._ledger, budgets=budgets, cache=self._cache, room=self._room, running=self._running
        )
        self._refusals = Refusals(self._slots.serial)
        self._reuse = ReuseWindow(ledger, self._cached_tokens)

    def admit(self, rows: Rows, *, shut: bool) -> Rows:
        """The rows of the step with those of prompts that were admitted; `shut` after a preemption in this step."""
        self._refusals.begin_schedule()
        waiting = self._queue.requests_by_tenant > 0
        if not waiting.any():
            self._fair.look(self._budgets.held > 0, self._budgets.held)
            self._queue.blocked_by(WaitCause.STEP)
            return rows
        self._fair.look(waiting | (self._budgets.held > 0), self._budgets.held)
        visit = self._begin(rows, shut)
        stop = self._serve(visit)
        self._queue.blocked_by(WaitCause.STEP if stop is None else stop, visit.causes)
        return self._with(visit.rows, visit.admitted)

    # -- one schedule ---------------------------------------------------------------------------------------------

    def _begin(self, rows: Rows, shut: bool) -> Visit:
        return Visit(
            rows=rows,
            standing=self._standing(),
            budget=self._config.max_num_batched_tokens - rows.total_tokens,
            class_left=self._class_left(rows),
            shut=shut,
        )

    def _standing(self) -> Standing:
        partial, lengths = self._running.partial()
        needed = self._cache.blocks_needed(partial, lengths)
        promised = self._budgets.sums(self._slots.tenant[partial], needed)
        return self._budgets.standing(promised, self._cache.pool.available_blocks)

    def _class_left(self, rows: Rows) -> list[float]:
        """Prompt tokens each class may still compute in this step. A row of one token is as good as a decode."""
        prompts = np.where(rows.counts > 1, rows.counts, 0)
        used = np.bincount(self._slots.request_class[rows.slots], weights=prompts, minlength=len(self._policies))
        return [
            np.inf if policy.step_tokens is None else policy.step_tokens - spent
            for policy, spent in zip(self._policies, used.tolist(), strict=True)
        ]

    def _serve(self, visit: Visit) -> WaitCause | None:
        """Serve lanes in turn until one finds no room in the engine: its cause; None where all wait for their own."""
        ranked = self._ranked(visit)
        while ranked:
            lane = ranked.pop(0)
            cause = self._serve_head(lane, visit)
            if cause is None:
                ranked = self._ranked(visit)
            elif cause in _ENGINE_WIDE and not visit.shut:
                self._judge_others(lane, cause, visit)
                return cause
            else:
                visit.causes[lane.number] = cause
        return WaitCause.PREEMPTION if visit.shut else None

    def _ranked(self, visit: Visit) -> list[Lane]:
        lanes = [lane for lane in self._queue.lanes() if lane.number not in visit.causes]
        return in_turn(
            lanes,
            blocks={lane.number: self._most(lane) for lane in lanes},
            standing=visit.standing,
            positions=self._fair.positions(visit.standing.held),
            priorities=self._budgets.priority,
            serials=self._slots.serial,
        )

    def _most(self, lane: Lane) -> int:
        """Blocks that a lane's head takes, nothing of it being cached."""
        leader = lane.head.item(0)
        tokens = self._slots.prompt_tokens.item(leader) + self._slots.output_tokens.item(leader)
        return self._cache.blocks_beyond(0, tokens)

    def _judge_others(self, stopped: Lane, cause: WaitCause, visit: Visit) -> None:
        """Lanes behind one that found no room wait for the same, unless something of their own comes first.

        One of another tenant that would find room, were it its turn, waits for its fair share. It is judged without
        its cached prefix, and so never called that where it would find none.
        """
        for lane in self._queue.lanes():
            if lane is stopped or lane.number in visit.causes:
                continue
            found = self._own_cause(lane, visit)
            if found is None and lane.column != stopped.column and self._would_fit(lane, visit):
                found = WaitCause.FAIR_SHARE
            if found is not None:
                visit.causes[lane.number] = found

    def _own_cause(self, lane: Lane, visit: Visit) -> WaitCause | None:
        if visit.class_left[lane.kind] <= 0:
            return WaitCause.CLASS_BUDGET
        refusal = self._refusals.of(lane)
        if refusal is not None:
            if refusal.cause is WaitCause.TENANT_QUOTA and visit.standing.room(lane.column)[0] <= refusal.room[0]:
                return WaitCause.TENANT_QUOTA
            return None
        return WaitCause.TENANT_QUOTA if self._most(lane) > visit.standing.room(lane.column)[0] else None

    def _would_fit(self, lane: Lane, visit: Visit) -> bool:
        """Whether there is room for a lane's head. One within its reservation has its turn: not for want of it."""
        seats, blocks = len(self._running) + len(lane.head) <= self._config.max_num_seqs, self._most(lane)
        if not seats or visit.budget <= 0 or visit.standing.is_within_reserve(lane.column, blocks):
            return False
        return visit.standing.judge(lane.column, blocks) is None

    # -- one head -------------------------------------------------------------------------------------------------

    def _serve_head(self, lane: Lane, visit: Visit) -> WaitCause | None:
        """Admit a lane's head: None. Or say what it waits for. It may also end, where nothing will ever come back."""
        policy = self._policies[lane.kind]
        early = self._early_cause(lane, policy, visit)
        if early is not None:
            return early
        cause: WaitCause | None = None
        for group in self._reuse.order(lane, policy.reuse_window, self._config.max_num_seqs - len(self._running)):
            cause = self._serve_group(group, lane, policy, visit)
            if cause is None:
                return None
        assert cause is not None
        return self._turn_away(lane, cause, visit)

    def _serve_group(self, group: I32, lane: Lane, policy: ClassPolicy, visit: Visit) -> WaitCause | None:
        """Admit one group of a lane: None. Or say what it waits for."""
        leader, left = group.item(0), visit.class_left[lane.kind]
        tokens, salt = self._requests.sequence(leader), self._requests.salts.item(leader)
        hit, blocks = self._found(leader, tokens, salt)
        if not self._config.chunked_prefill and len(tokens) - hit > min(visit.budget, left):
            return WaitCause.TOKEN_BUDGET if len(tokens) - hit > visit.budget else WaitCause.CLASS_BUDGET
        cause = visit.standing.judge(lane.column, blocks, alone=not len(self._running))
        if cause is not None and policy.may_preempt and self._make_way(lane, blocks, visit):
            cause = visit.standing.judge(lane.column, blocks)
        if cause is not None:
            return cause
        count = int(min(visit.budget, left, len(tokens) - hit))
        self._reuse.admitted(lane, group)
        if not self._take(group, tokens, salt, hit, count):
            return WaitCause.POOL
        visit.note(lane, (leader, hit, count, len(tokens)), blocks)
        count_passes(self._queue.lanes(), lane)
        return None

    def _found(self, leader: int, tokens: I32, salt: int) -> tuple[int, int]:
        """As the base's; cached blocks that nobody holds are among those it takes, since it is charged for them."""
        if self._slots.state[leader] == RequestState.SWAPPED:
            return super()._found(leader, tokens, salt)
        hit, idle = self._cache.match_held(leader, tokens, salt)
        return hit, self._cache.blocks_beyond(hit, len(tokens)) + idle

    def _early_cause(self, lane: Lane, policy: ClassPolicy, visit: Visit) -> WaitCause | None:
        """What a lane waits for whatever its head is made of; None where that has to be looked at."""
        if visit.shut and not self._may_pass(lane, policy, visit):
            return WaitCause.PREEMPTION
        if len(self._running) + len(lane.head) > self._config.max_num_seqs:
            return WaitCause.BATCH_SLOTS
        if visit.budget <= 0:
            return WaitCause.TOKEN_BUDGET
        if visit.class_left[lane.kind] <= 0:
            return WaitCause.CLASS_BUDGET
        # Who may preempt looks for victims anew each time.
        return None if policy.may_preempt else self._refused_before(lane, visit)

    def _cached_tokens(self, leader: int) -> int:
        return self._cache.match(leader, self._requests.sequence(leader), self._requests.salts.item(leader))

    def _make_way(self, lane: Lane, blocks: int, visit: Visit) -> bool:
        """Preempt running sequences of a lower class, if that makes room. What they would compute, they do not."""
        running = self._running.ready()
        running = running[~np.isin(running, [row[0] for row in visit.admitted])]
        positions = self._fair.positions(visit.standing.held)
        victims = self._give_way.victims(lane, blocks, running, standing=visit.standing, positions=positions)
        for slot in victims:
            self._room.preempt(slot)
            visit.causes[self._queue.lane_of(slot)] = WaitCause.PREEMPTION
        if victims:
            visit.rows = visit.rows.without(np.array(victims, np.int32))
            visit.budget = self._config.max_num_batched_tokens - visit.rows.total_tokens
            visit.budget -= sum(row[2] for row in visit.admitted)
            visit.standing, visit.shut, visit.gave_way = self._standing(), True, True
        return bool(victims)

    def _may_pass(self, lane: Lane, policy: ClassPolicy, visit: Visit) -> bool:
        """Who is admitted though somebody was preempted in this step: within its own reservation, nobody misses it."""
        if visit.standing.is_within_reserve(lane.column, self._most(lane)):
            return True
        return visit.gave_way and policy.may_preempt

    def _refused_before(self, lane: Lane, visit: Visit) -> WaitCause | None:
        """The cause for which a lane was turned away lately, if its head is the same and there is no more room."""
        return self._refusals.still_holds(lane, visit.standing.room(lane.column)) if len(self._running) else None

    def _turn_away(self, lane: Lane, cause: WaitCause, visit: Visit) -> WaitCause | None:
        if not len(self._running):
            self._end_hopeless(lane.head.item(0))
            return None
        self._refusals.note(lane, cause, visit.standing.room(lane.column))
        return cause
