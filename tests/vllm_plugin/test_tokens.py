"""Token counts under any schedule: pipelines, requests left out, ends in flight, sessions that begin anew."""

from __future__ import annotations

import random

import pytest

from tests.vllm_plugin.tokenrig import Asked, TokenRig


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_every_count_is_right_after_every_call_however_many_steps_are_in_flight(stages: int, seed: int) -> None:
    drawn, rig = random.Random(seed), TokenRig()
    ready: list[str] = []
    flying: list[tuple[object, list[str]]] = []
    made = 0
    for step in range(150):
        if len(rig.scheduler.requests) < 40 and drawn.random() < 0.2:
            name = f"r{made}"
            rig.admit(Asked(name, 1 + drawn.randrange(40), max_tokens=1 + drawn.randrange(60)))
            ready.append(name)
            made += 1
        if len(flying) >= stages or (flying and drawn.random() < 0.2):
            output, sampled = flying.pop(0)
            rig.update(output, [name for name in sampled if name in rig.scheduler.requests])
            ready += [n for n in output.num_scheduled_tokens if n in rig.scheduler.requests]  # type: ignore[attr-defined]
            for name in [n for n in sampled if n in rig.scheduler.requests]:
                request = rig.scheduler.requests[name]
                if request.num_output_tokens >= request.max_tokens:
                    ready.remove(name)
                    rig.end(name)
        if ready and drawn.random() < 0.05:
            rig.end(ready.pop(drawn.randrange(len(ready))))
        if ready:
            left_out = [name for name in ready if drawn.random() < 0.05]
            counts, sampled = {}, []
            for name in [name for name in ready if name not in left_out]:
                request = rig.scheduler.requests[name]
                counts[name] = min(
                    max(1, request.num_prompt_tokens - request.num_computed_tokens), drawn.choice((1, 16))
                )
                if request.num_computed_tokens + counts[name] >= request.num_prompt_tokens:
                    sampled.append(name)
            ready = left_out
            if counts:
                flying.append((rig.schedule(counts), sampled))
        assert rig.seen() == rig.true(), f"step {step}"


def test_a_part_of_a_prompt_is_progress_though_nobody_has_a_token_of_it_yet() -> None:
    rig = TokenRig()
    rig.admit(Asked("long", 64))

    for _ in range(3):
        output = rig.schedule({"long": 16})
        scheduled = rig.reader.sample().stats.whole("last_token_ns")
        rig.update(output, [])
        assert rig.reader.sample().stats.whole("last_token_ns") > scheduled
    assert rig.generated() == 0


def test_requests_that_do_the_same_step_after_step_are_told_of_together() -> None:
    rig, names = TokenRig(), list("abcd")
    for name in names:
        rig.admit(Asked(name, 4))
    rig.update(rig.schedule(dict.fromkeys(names, 4)), names)
    for _ in range(20):
        rig.update(rig.schedule(dict.fromkeys(names, 1)), names)
    assert [message.tokens for message in rig.channel.messages[-38:]] == [None] * 38
    assert (rig.seen(), rig.generated(), rig.corrections()) == (rig.true(), 4 * 21, 0)


def test_a_count_that_goes_wrong_unseen_is_put_right_within_a_round_and_counted() -> None:
    rig, names = TokenRig(), [f"r{number}" for number in range(30)]
    for name in names:
        rig.admit(Asked(name, 4))
    rig.update(rig.schedule(dict.fromkeys(names, 4)), names)
    rig.scheduler.requests["r7"].num_computed_tokens -= 2
    rig.scheduler.requests["r23"].num_output_tokens += 3
    assert len({*rig.seen().items()} - {*rig.true().items()}) == 2
    for _ in range(8):
        rig.update(rig.schedule(dict.fromkeys(names, 1)), names)
    assert (rig.seen(), rig.corrections()) == (rig.true(), 2)
    assert rig.generated() == 30 * 9 + 3


def test_a_step_whose_output_never_comes_is_forgotten() -> None:
    rig = TokenRig()
    rig.admit(Asked("a", 4))
    rig.schedule({"a": 4})
    rig.update(rig.schedule({"a": 1}), ["a"])
    assert (rig.seen(), rig.generated()) == (rig.true(), 1)


def test_a_request_that_begins_its_output_anew_takes_nothing_from_the_total() -> None:
    rig = TokenRig()
    session = Asked("s", 10)
    rig.admit(session)
    rig.update(rig.schedule({"s": 10}), ["s"])
    for _ in range(29):
        rig.update(rig.schedule({"s": 1}), ["s"])
    assert (rig.generated(), rig.seen()) == (30, rig.true())
    session.num_output_tokens, session.num_prompt_tokens = 0, 60
    rig.admit(session)
    rig.update(rig.schedule({"s": 20}), ["s"])
    for _ in range(9):
        rig.update(rig.schedule({"s": 1}), ["s"])
    assert (rig.generated(), rig.seen()) == (40, rig.true())
    rig.end("s")
    assert rig.generated() == 40


def test_of_a_preempted_requests_tokens_those_found_in_the_prefix_cache_are_not_recomputed() -> None:
    rig = TokenRig()
    rig.admit(Asked("a", 40, num_tokens=40))
    rig.find("a", 8)
    rig.update(rig.schedule({"a": 32}), ["a"])
    rig.preempt("a")
    rig.find("a", 32)
    rig.schedule({"a": 9})
    stats = rig.reader.sample().stats
    assert stats.counter("recomputed_tokens_total") == 40 - 32
    assert stats.counter("preemptions_total", mode="recompute") == 1
    assert stats.counter("prefix_hit_tokens_total") == 8
    assert stats.counter("prefix_queried_tokens_total") == 40
    assert rig.seen() == rig.true()
