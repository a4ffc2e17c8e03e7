"""What each class is promised, whatever comes: interactive small, prompt and quick; batch long, and close to its cache.

The load is drawn; what is looked at is the ledger while each step computes.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.words import Event, RequestClass, RequestState
from kvledger_engine.batch import Batch
from kvledger_engine.messages import NewRequest
from kvledger_engine.quotafile import parse_quotas
from kvledger_engine.quotas import CLASS_DEFAULTS
from tests.engine.rig import Rig, expected, request

SIZES = st.tuples(st.integers(1, 40), st.integers(1, 12))
"""Prompt and answer of a request in tokens."""
LOADS = st.lists(st.tuples(st.sampled_from(RequestClass.words()), SIZES, st.integers(0, 3)), min_size=1, max_size=14)


def rig_of(classes: dict[str, Any], **more: Any) -> Rig:
    sizes = {"capacity_blocks": 24, "max_num_seqs": 6, "max_num_batched_tokens": 24, "max_waiting": 99}
    return Rig(quotas=parse_quotas({"classes": classes}), **(sizes | more))


def watched(rig: Rig) -> list[Batch]:
    """The batches of the steps to come."""
    batches: list[Batch] = []
    execute = rig.loop._execute

    def watch(batch: Batch) -> Any:
        batches.append(batch)
        return execute(batch)

    rig.loop._execute = watch
    return batches


def test_the_defaults_are_what_the_classes_are_for() -> None:
    assert CLASS_DEFAULTS["interactive"].may_preempt
    assert CLASS_DEFAULTS["batch"].reuse_window > CLASS_DEFAULTS["interactive"].reuse_window == 1
    assert not CLASS_DEFAULTS["batch"].may_preempt
    assert not CLASS_DEFAULTS["default"].may_preempt


@given(load=LOADS, context=st.integers(8, 30), step=st.integers(2, 20))
@settings(max_examples=40, deadline=None)
def test_interactive_has_a_small_context_and_a_small_part_of_every_step_and_batch_has_neither_bound(
    load: list[tuple[str, tuple[int, int], int]], context: int, step: int
) -> None:
    rig = rig_of({"interactive": {"max_context": context, "step_tokens": step}}, prefix_caching=False)
    batches, taken = watched(rig), list[NewRequest]()
    for number, (kind, (prompt, tokens), wait) in enumerate(load):
        new = request(f"r{number}", prompt, tokens, request_class=kind)
        refused = rig.submit(new)
        too_long = kind == "interactive" and prompt + tokens > context
        assert [answer.reason for answer in refused] == ["context_too_long"] * too_long
        taken += [new] * (not refused)
        before = len(batches)
        rig.step(wait)
        for batch in batches[before:]:
            spent_at_most(rig, batch, step)
    rig.finish()
    assert rig.outcome.tokens == expected(taken), "all of them, those of the longest context among them"
    rig.check_empty()


def spent_at_most(rig: Rig, batch: Batch, step: int) -> None:
    """Slots of ended requests keep their class until somebody takes them."""
    interactive = rig.ledger.slots.request_class[batch.slots] == RequestClass.INTERACTIVE
    prompts = batch.counts > 1
    assert int(batch.counts[interactive & prompts].sum()) <= step


@given(
    running=st.lists(st.tuples(st.sampled_from(["batch", "default"]), st.integers(1, 5)), min_size=1, max_size=5),
    blocks=st.integers(1, 8),
    may_preempt=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_an_interactive_request_begins_with_the_next_schedule_wherever_lower_classes_hold_its_room(
    running: list[tuple[str, int]], blocks: int, may_preempt: bool
) -> None:
    rig = rig_of({"interactive": {"may_preempt": may_preempt}}, capacity_blocks=20, max_num_batched_tokens=99)
    others = [
        request(f"r{number}", [100 + number, *[number] * (4 * held - 3)], 3, request_class=kind)
        for number, (kind, held) in enumerate(running)
    ]
    rig.submit(*others)
    rig.step()
    held = int(rig.sample().stats.gauge("active_blocks") or 0)
    began = {int(slot) for slot in rig.running}
    mine = request("mine", [7] * (4 * blocks - 1), 1, request_class="interactive")
    rig.submit(mine)
    rig.step()
    admitted = ("mine", 0) in rig.outcome.finished
    preempted = rig.count("preemptions_total", mode="recompute")
    assert admitted == (may_preempt or held + blocks <= 20) or len(began) == 6
    assert preempted == 0 or (may_preempt and held + blocks > 20)
    rig.finish()
    assert rig.outcome.tokens == expected([*others, mine])
    rig.check_empty()


@given(
    kinds=st.lists(st.sampled_from(["hot", "warm", "cold"]), min_size=2, max_size=10), window=st.sampled_from([1, 3, 8])
)
@settings(max_examples=40, deadline=None)
def test_batch_takes_of_its_oldest_the_one_with_the_longest_cached_prefix(kinds: list[str], window: int) -> None:
    rig = rig_of({"batch": {"reuse_window": window}}, max_num_seqs=1, capacity_blocks=60, max_num_batched_tokens=99)
    shared = {"hot": [9] * 24, "warm": [9] * 8 + [8] * 16, "cold": []}
    depth = {"hot": 24, "warm": 8, "cold": 0}
    rig.submit(request("seed", [*shared["hot"], 1], 1, request_class="batch"))
    rig.finish()
    waiting = []
    for number, kind in enumerate(kinds):
        prompt = [*shared[kind], 30 + number] if kind != "cold" else [40 + number] * 25
        waiting.append((f"r{number}", kind))
        rig.submit(request(f"r{number}", prompt, 1, request_class="batch"))
    served = {"warm": False}
    while waiting:
        (name, _), *_ = [key for key in rig.outcome.finished if key[0] != "seed"][-1:] or [("", 0)]
        rig.step()
        (last, _) = list(rig.outcome.finished)[-1]
        assert last != name
        cached = [depth[kind] if kind != "warm" or not served["warm"] else 24 for _, kind in waiting[:window]]
        assert last == waiting[cached.index(max(cached))][0]
        served["warm"] |= dict(waiting)[last] == "warm"
        waiting = [entry for entry in waiting if entry[0] != last]
    rig.check_empty()


@pytest.mark.parametrize("kind", RequestClass.words())
def test_only_interactive_preempts_and_only_lower_classes_give_way(kind: str) -> None:
    rig = rig_of({}, capacity_blocks=12, prefix_caching=False, max_num_batched_tokens=99)
    rig.submit(*[request(f"{other}", 16, 3, request_class=other) for other in ("interactive", "batch")])
    rig.step()
    rig.submit(request("mine", 16, 2, request_class=kind))
    rig.step()
    slots = rig.ledger.slots
    gave_way = [
        RequestClass(int(slots.request_class[slot])).word
        for slot in range(3)
        if slots.state[slot] == RequestState.PREEMPTED
    ]
    assert gave_way == (["batch"] if kind == "interactive" else [])
    assert len(rig.serials_of(Event.PREEMPTED)) == len(gave_way)
    rig.finish()
