"""Request slots: legal transitions only, identities that are never used twice, and tokens that stay private."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.words import RequestState
from kvledger_engine.request import RequestTable
from tests.engine.rig import Rig, request

LEGAL = {
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
}


@given(before=st.sampled_from(list(RequestState)), after=st.sampled_from(list(RequestState)))
def test_only_legal_transitions_are_made(before: RequestState, after: RequestState) -> None:
    rig = Rig(max_waiting=1, max_num_seqs=1)
    table = RequestTable(rig.config, rig.ledger)
    rig.ledger.slots.state[0] = before
    if (before, after) in LEGAL:
        table.move(np.array([0], np.int32), after)
        assert rig.ledger.slots.state[0] == after
    else:
        with pytest.raises(AssertionError, match=after.word):
            table.move(np.array([0], np.int32), after)


def test_a_slot_is_stamped_before_its_state_changes() -> None:
    rig = Rig()
    rig.submit(request("a"))
    assert rig.ledger.slots.changed_seq[0] == rig.ledger.seq
    rig.finish()
    stamped = int(rig.ledger.slots.changed_seq[0])
    assert stamped == rig.sample().published_seq


def test_slots_are_used_again_and_serials_never() -> None:
    rig = Rig(max_num_seqs=2, max_waiting=2)
    serials = set()
    for round_ in range(5):
        rig.submit(*[request(f"r{round_}.{i}") for i in range(2)])
        serials |= set(rig.sample().slots.serial.tolist())
        rig.finish()
        rig.check_empty()
    assert serials == set(range(1, 11))


def test_a_new_occupant_inherits_nothing_from_the_last_one() -> None:
    rig = Rig(max_num_seqs=1, max_waiting=1)
    rig.submit(request("a", 20, 9, stop_tokens=[1]))
    rig.clock.advance(10**6)
    rig.finish()
    rig.submit(request("b", 3, 2))
    slots = rig.ledger.slots
    for name in ("output_tokens", "computed_tokens", "hit_tokens", "peak_blocks", "first_token_ns", "finishing_ns"):
        assert getattr(slots, name)[0] == 0, name
    assert slots.wait_seconds[0].sum() == 0
    assert slots.block_seconds[0] == 0
    rig.finish()
    assert rig.outcome.finished["b", 0].output_tokens == 2


@given(st.text(min_size=1, max_size=64))
def test_an_id_is_kept_as_its_ends_and_a_hash_of_the_whole(request_id: str) -> None:
    rig = Rig(max_waiting=1, max_num_seqs=1)
    rig.submit(request(request_id, [1]))
    raw, slots = request_id.encode(), rig.ledger.slots
    assert slots.id_head[0] == raw[:40].rstrip(b"\0")
    assert slots.id_tail[0] == raw[-16:].rstrip(b"\0")
    assert slots.id_hash[0] == int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")


def test_no_token_and_no_salt_ever_reaches_the_ledger() -> None:
    rig = Rig()
    prompt = [201, 7, 77, 200, 3, 99, 150, 31]
    rig.submit(request("a", prompt, 20, salt="a-tenants-secret", n=2, temperature=1.0))
    for _ in range(25):
        rig.step()
        image = bytes(rig.ledger.image)
        for width in (np.uint8, np.int16, np.int32, np.int64):
            assert np.array(prompt, width).tobytes() not in image
            generated = rig.outcome.tokens["a", 0][:8]
            assert len(generated) < 8 or np.array(generated, width).tobytes() not in image
        assert b"a-tenants-secret" not in image
