"""Ways of decoding that change what a step may do: guesses of several tokens, sessions whose input goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvledger.words import RequestState
from tests.vllm.mirrored import Work, mirrored
from tests.vllm.truth import differences, key, ledger_counts, truth_of

NGRAMS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2}


@pytest.mark.parametrize(("seed", "blocks"), [(51, 65), (52, 401)])
def test_with_speculative_decoding_every_count_stays_vllms_own_whatever_is_accepted(
    tiny_model: Path, ledger_directory: Path, seed: int, blocks: int
) -> None:
    """vLLM's scheduler alone, with n-gram guesses: random numbers of guesses, of which random numbers are right."""
    with mirrored(
        tiny_model, ledger_directory, blocks=blocks, seed=seed, asynchronous=False, speculative_config=NGRAMS
    ) as mirror:
        work, rejected, several = Work(mirror, seed), 0, 0
        mirror.check("start")
        for number in range(400):
            before = {r.request_id: r.num_computed_tokens for r in mirror.scheduler.running}
            generated = {r.request_id: r.num_output_tokens for r in mirror.scheduler.running}
            mirror.check(f"{number}: {work.call()}")
            for request in mirror.scheduler.running:
                rejected += request.num_computed_tokens < before.get(request.request_id, 0)
                several += request.num_output_tokens > generated.get(request.request_id, 10**9) + 1
        mirror.bare.drain()
        mirror.bare.abort(*mirror.scheduler.requests)
        mirror.check("all aborted")
        assert several > 50
        assert mirror.corrections() == 0
        stats = mirror.reader.sample().stats
        firsts, gaps = (
            stats.histogram(name, **{"class": "default"}) for name in ("time_to_first_token", "inter_token_latency")
        )
        assert firsts is not None
        assert gaps is not None
        # A first step may give several tokens, and is one observation.
        assert 0 < firsts.count + gaps.count <= (stats.counter("generation_tokens_total") or 0)


def test_blocks_tables_and_tokens_of_a_session_whose_input_goes_on_are_vllms_own(
    tiny_model: Path, ledger_directory: Path
) -> None:
    """But for its state while it waits for input, and its output as a whole, which is documented."""
    with mirrored(tiny_model, ledger_directory, blocks=65, seed=53, asynchronous=False) as mirror:

        def check(what: str) -> None:
            assert mirror.instrument.switch.on, (what, mirror.instrument.switch.why)
            wrong = differences(truth_of(mirror.scheduler), ledger_counts(mirror.reader))
            assert wrong.keys() <= {"running", "waiting", "deferred", "computed", "output"}, (what, wrong)
            assert mirror.named() == set(), what

        mirror.bare.add("other", [9] * 30, max_tokens=60)
        waited = False
        for part in range(3):
            mirror.bare.add("session", [5 + part] * 40, max_tokens=6, resumable=True)
            check(f"part {part}")
            for number in range(12):
                mirror.bare.step()
                check(f"part {part}, step {number}")
            waited |= mirror.scheduler.requests["session"].status.name == "WAITING_FOR_STREAMING_REQ"
        assert waited
        states = mirror.reader.sample().slots
        (at,) = [i for i, name in enumerate(states.id_hash.tolist()) if name == key("session")]
        assert int(states.state[at]) == int(RequestState.RUNNING), "as docs/vllm.md says"
        mirror.bare.abort("session")
        mirror.check("aborted while it waited for input")
        mirror.bare.abort("other")
        mirror.check("all aborted")
        assert mirror.corrections() == 0
