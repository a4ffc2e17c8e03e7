"""The switch of deferred frees that the tests use: vLLM is never left with blocks that nothing gives back."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.vllm.bare import BareScheduler
from tests.vllm.deferral import Deferral


@pytest.mark.parametrize("seed", range(4))
def test_frees_that_are_deferred_come_back_with_the_steps_in_flight_however_often_that_is_switched(
    tiny_model: Path, seed: int
) -> None:
    """Switched between any two halves of steps, with up to two of them in flight."""
    bare, drawn, deferred = BareScheduler(tiny_model, blocks=65, seed=seed), random.Random(seed), 0
    scheduler = bare.scheduler
    deferral = Deferral(scheduler)
    for number in range(600):
        if drawn.random() < 0.3 and len(scheduler.requests) < 20:
            prompt = [drawn.randrange(3, 512) for _ in range(drawn.randrange(1, 300))]
            bare.add(f"r{number}", prompt, max_tokens=drawn.randrange(1, 40))
        if drawn.random() < 0.3:
            deferral.switch(drawn.random() < 0.6)
        if drawn.random() < 0.2 and scheduler.running:
            bare.abort(drawn.choice(scheduler.running).request_id)
        deferred += bool(scheduler.deferred_frees)
        deferral.scheduled(bare.schedule())
        while bare.full() or (bare.in_flight and drawn.random() < 0.2):
            deferral.processed(bare.update())
        ahead = scheduler.sched_step_seq - scheduler.processed_step_seq
        assert ahead <= bare.in_flight, f"step {number}: frees wait for steps that are over"
        assert bare.in_flight or not scheduler.deferred_frees, f"step {number}: blocks that no step gives back"
    assert deferred > 20
