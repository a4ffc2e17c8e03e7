"""A Hypothesis machine drives an engine that swaps: whatever comes, nothing is lost, foreign, held or left waiting.

After every publication the ledger is audited against its reference, and the host pool against what is saved. Before
every step each cell that nobody may rely on, in the pool and in host memory, is filled with garbage, so that a block
that did not come back bit for bit changes a token.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from kvledger.views import I32
from kvledger.words import CancelCause, Event, PreemptedFate, RequestState
from kvledger_engine.batch import Batch
from kvledger_engine.messages import NewRequest
from tests.engine.poison import PoisonedCellModel
from tests.engine.rig import STEP_NS, VOCABULARY, Rig, expected, request

MODES = ("recompute", "swap")


class Fallible:
    """The rig's cell model over poisoned host memory; where told to, it fails after it has moved some blocks."""

    def __init__(self) -> None:
        self.rig: Rig | None = None
        self.fails = False
        self.copied: Counter[str] = Counter()
        """Blocks copied, by direction."""
        self._rng = np.random.default_rng(0)

    def execute(self, batch: Batch) -> I32:
        """See `Compute.execute`."""
        assert self.rig is not None
        cells, host = self.rig.cells, self.rig.loop._cache.swaps.host
        free = host.references(np.arange(host.capacity)) == 0
        cells.host_cells[free] = self._rng.integers(1, 1 << 63, cells.host_cells.shape, dtype=np.uint64)[free]
        if self.fails:
            self.fails = False
            raise RuntimeError("device lost")
        if batch.host_copies is not None:
            self.copied["out"] += len(batch.host_copies.out_hosts)
            self.copied["in"] += len(batch.host_copies.in_hosts)
        return cells.execute(batch)


def host_is_sound(rig: Rig) -> None:
    """Every host block is free or needed, and needed as often as is saved or is on its way back."""
    swaps = rig.loop._cache.swaps
    host, transfers = swaps.host, swaps._transfers
    wanted = np.zeros(host.capacity, np.int32)
    for saved in swaps._saved.values():
        np.add.at(wanted, saved.hosts, 1)
    np.add.at(wanted, transfers._in_hosts, 1)
    assert host.references(np.arange(host.capacity)).tolist() == wanted.tolist()
    free = host._stack[: host.free_blocks].tolist()
    assert len(set(free)) == len(free)
    assert sorted(free) == np.flatnonzero(wanted == 0).tolist()
    linked = np.flatnonzero(host._twin >= 0)
    assert (host._host_of[host._twin[linked]] == linked).all()
    assert len(linked) == np.count_nonzero(host._host_of >= 0)
    slots = rig.ledger.slots
    swapped = np.flatnonzero((slots.serial != 0) & (slots.state == RequestState.SWAPPED))
    assert all(leader in swaps._saved or rig.loop._requests.awaits_fork[leader] for leader in swapped.tolist())
    assert set(swaps._saved) <= set(swapped.tolist())
    assert not slots.table_blocks[swapped].any()


class SwapMachine(RuleBasedStateMachine):
    """Requests with common prefixes and forks come, run, give way, are cancelled, fail; time passes."""

    config: ClassVar[dict[str, Any]] = {"capacity_blocks": 13, "swap_blocks": 12}
    seen: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        sizes = {"max_num_seqs": 5, "max_num_batched_tokens": 14, "max_model_len_tokens": 40, "max_waiting": 99}
        compute = Fallible()
        self.rig = Rig(compute=compute, preemption="swap", **(sizes | self.config))
        compute.rig, self.compute = self.rig, compute
        assert isinstance(self.rig.cells, PoisonedCellModel)
        self.taken: list[NewRequest] = []
        self.cut: set[str] = set()

    @rule(
        prompt=st.integers(1, 20),
        tokens=st.integers(6, 18),
        n=st.sampled_from([1, 1, 2, 3]),
        alike=st.integers(0, 1),
        kind=st.sampled_from(["default", "default", "interactive", "batch"]),
    )
    def submit(self, prompt: int, tokens: int, n: int, alike: int, kind: str) -> None:
        name, content = f"r{len(self.taken)}", [(7 * i + alike) % VOCABULARY for i in range(prompt)]
        new = request(name, content, tokens, n=n, temperature=1.0, request_class=kind)
        if not self.rig.submit(new):
            self.taken.append(new)

    @rule(times=st.integers(1, 6))
    def step(self, times: int) -> None:
        self.rig.step(times)

    @rule(pick=st.integers(0, 40), cause=st.sampled_from(CancelCause))
    def cancel(self, pick: int, cause: CancelCause) -> None:
        if self.taken:
            name = self.taken[pick % len(self.taken)].request_id
            self.cut.add(name)
            self.rig.cancel(name, cause=cause)

    @rule()
    def a_step_fails(self) -> None:
        before = set(self.rig.outcome.finished)
        self.compute.fails = self.rig.loop._is_active
        self.rig.step()
        ended = set(self.rig.outcome.finished) - before
        self.cut |= {key[0] for key in ended if self.rig.outcome.reasons[key] == "engine_error"}

    @rule(late_ns=st.integers(1, 5 * STEP_NS))
    def time_passes(self, late_ns: int) -> None:
        self.rig.clock.advance(late_ns)
        self.rig.ledger.publish_now(idle=not self.rig.loop._is_active)

    @invariant()
    def nothing_contradicts(self) -> None:
        self.rig.check()
        host_is_sound(self.rig)

    def teardown(self) -> None:
        alone = sum(r.n * (len(r.prompt) + r.max_tokens) for r in self.taken)
        self.rig.finish(within_steps=6 * alone + 100)  # whoever gives way comes back: no livelock
        for key, tokens in expected(self.taken).items():
            got = self.rig.outcome.tokens.get(key, [])
            assert got == (tokens[: len(got)] if key[0] in self.cut else tokens), key
        self.rig.check_empty()
        host_is_sound(self.rig)
        assert self.rig.loop._cache.swaps.used_blocks == 0
        for direction in ("out", "in"):
            assert self.rig.count("swapped_blocks_total", direction=direction) == self.compute.copied[direction]
        events = self.rig.reader.events(0).records
        gave_way = int(events["blocks"][events["event"] == Event.PREEMPTED].sum())
        assert gave_way == sum(self.rig.count("preempted_blocks_total", fate=fate) for fate in PreemptedFate.words())
        for mode in MODES:
            type(self).seen[mode] += int(self.rig.count("preemptions_total", mode=mode))


class CrampedSwapMachine(SwapMachine):
    """A host pool of a few blocks: most that give way are computed again, and the two ways mix."""

    config: ClassVar[dict[str, Any]] = {"capacity_blocks": 13, "swap_blocks": 4}


class PlainSwapMachine(SwapMachine):
    """No prefix caching: what is shared is shared by forks alone."""

    config: ClassVar[dict[str, Any]] = {"capacity_blocks": 13, "swap_blocks": 40, "prefix_caching": False}


class ReprievingSwapMachine(SwapMachine):
    """Cached blocks are passed over by their depth, and all prompts are computed whole."""

    config: ClassVar[dict[str, Any]] = {
        "capacity_blocks": 13,
        "swap_blocks": 40,
        "eviction": "prefix",
        "chunked_prefill": False,
        "max_num_batched_tokens": 40,
    }


MACHINES = (SwapMachine, CrampedSwapMachine, PlainSwapMachine, ReprievingSwapMachine)


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_nothing_is_lost_foreign_held_or_left_waiting_whatever_comes(machine: type[SwapMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=50, stateful_step_count=40, deadline=None))


@pytest.mark.drill
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", MACHINES)
def test_nothing_is_lost_foreign_held_or_left_waiting_for_long(machine: type[SwapMachine]) -> None:
    machine.seen = Counter()
    run_state_machine_as_test(machine, settings=settings(max_examples=300, stateful_step_count=60, deadline=None))
    assert machine.seen["swap"] > 100
    assert machine.seen["recompute"] > 0 or machine is not CrampedSwapMachine
