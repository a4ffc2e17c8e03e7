"""What the pages show, without drawing it: unknown stays unknown, every block has one kind, alike findings are one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvledger.words import Action, BlockState, FindingKind, Verdict, WaitCause
from kvledger_agent.client import BlockArrays
from kvledger_dashboards.explorer.views import blockmap, engines, leaks, overview, palette, requests, text, waits

STATES = BlockState.words()


def arrays(state: NDArray[np.uint8], ref_count: NDArray[np.int32], owner: NDArray[np.uint64]) -> BlockArrays:
    return BlockArrays(
        capacity_blocks=len(state),
        published_seq=7,
        consistent=True,
        states=STATES,
        state=state,
        ref_count=ref_count,
        owner=owner,
    )


def pool(*blocks: tuple[str, int]) -> BlockArrays:
    state = np.array([STATES.index(word) for word, _ in blocks], np.uint8)
    references = np.array([count for _, count in blocks], np.int32)
    return arrays(state, references, np.arange(len(blocks), dtype=np.uint64))


def request(serial: int, **fields: object) -> dict[str, object]:
    row: dict[str, object] = {
        "serial": serial, "id_head": f"r{serial}", "id_tail": "", "tenant": "acme", "state": "running",
        "wait_cause": None, "wait_seconds": {}, "blocks": 0, "shared_blocks": 0, "peak_blocks": 0, "age_seconds": 1.0,
        "time_to_first_token_seconds": None, "prompt_tokens": 1, "output_tokens": 0, "preemptions": 0,
        "computed_tokens": 0, "block_seconds": 0.0,
    }  # fmt: skip
    return row | fields


def finding(**fields: object) -> dict[str, object]:
    row: dict[str, object] = {
        "kind": "excess_reference", "blocks": [2], "block_count": 1, "bytes": 512, "since_clock_ns": 5_000_000_000,
        "owner": {"serial": 4, "id_head": "r4", "tenant": "acme", "ended": "cancelled:api", "ended_clock_ns": None},
        "candidates": [], "known": "no other request ever held these blocks", "blocks_per_minute": None,
    }  # fmt: skip
    return row | fields


def test_every_kind_of_block_has_its_colour() -> None:
    blocks = pool(("free", 0), ("cached", 0), ("active", 1), ("active", 2), ("active", 2), ("active", 1), ("free", 0))
    pins = [{"block": 4, "kind": "transfer"}]
    found = [finding(blocks=[5]), finding(kind="lost_block", blocks=[6])]
    shown = blockmap.block_map(blocks, pins=pins, findings=found)
    assert [blockmap.KINDS[cell] for cell in shown.cells.ravel()[:7]] == list(blockmap.KINDS)
    assert shown.cells.dtype == np.uint8


def test_a_pins_reference_is_not_sharing() -> None:
    shown = blockmap.block_map(pool(("active", 2), ("active", 2)), pins=[{"block": 0}], findings=[])
    assert (shown.counts["pinned"], shown.counts["shared"]) == (1, 1)


def test_leaked_blocks_that_no_finding_lists_are_counted_and_an_unaudited_engine_is_unknown() -> None:
    blocks = pool(("active", 1), ("active", 1), ("active", 1))
    shown = blockmap.block_map(blocks, pins=[], findings=[finding(blocks=[2], block_count=70)])
    assert shown.unlocated_blocks == 69
    assert blockmap.block_map(blocks, pins=[], findings=None).unlocated_blocks is None


@given(st.integers(1, 3000), st.integers(0, 1 << 32))
def test_the_map_holds_every_block_once_in_order(capacity: int, seed: int) -> None:
    drawn = np.random.default_rng(seed)
    state = drawn.integers(0, 3, capacity).astype(np.uint8)
    references = np.where(state == 2, drawn.integers(1, 4, capacity), 0).astype(np.int32)
    owners = drawn.integers(0, 1 << 40, capacity).astype(np.uint64)
    shown = blockmap.block_map(arrays(state, references, owners), pins=[], findings=[])
    cells = shown.cells.ravel()
    assert sum(shown.counts.values()) == capacity == int((cells != blockmap.OUTSIDE).sum())
    assert (cells[capacity:] == blockmap.OUTSIDE).all()
    assert ((cells[:capacity] == 3) == ((state == 2) & (references >= 2))).all()
    assert shown.details is not None
    assert (shown.details[..., 1].ravel()[:capacity] == owners).all()


@pytest.mark.parametrize("capacity", [1, 64, 1600, 100_000, 1_000_000])
def test_the_map_is_wider_than_high_but_no_ribbon(capacity: int) -> None:
    columns = blockmap.columns_of(capacity)
    rows = -(-capacity // columns)
    assert rows <= columns * 4 or capacity > 500_000
    assert capacity < 64 or columns <= rows * 8


def test_a_large_pools_map_carries_no_details_per_cell() -> None:
    state = np.zeros(100_000, np.uint8)
    shown = blockmap.block_map(
        arrays(state, np.zeros(100_000, np.int32), np.zeros(100_000, np.uint64)), pins=[], findings=[]
    )
    assert shown.details is None
    assert shown.cells.nbytes < 101_000


def test_an_engine_that_reports_nothing_is_unknown_and_never_zero() -> None:
    bar, wants = overview.pool_bar({}), overview.demand({})
    numbers = (bar.active_blocks, bar.leaked_blocks, bar.shared_blocks, bar.alert_blocks, wants.waiting_total)
    assert {text.count(value) for value in numbers} == {"unknown"}
    assert (wants.rejections, wants.live, text.size(None), text.duration(None)) == (None, None, "unknown", "unknown")
    found = leaks.judgement({})
    assert (found.audited, found.undecided, found.leaked_blocks) == (False, None, None)


def test_one_unknown_group_makes_the_sum_unknown() -> None:
    groups = [{"logical_blocks": 3, "shared_blocks": 1}, {"logical_blocks": None, "shared_blocks": 0}]
    bar = overview.pool_bar({"groups": groups})
    assert (bar.logical_blocks, bar.shared_blocks) == (None, 1)


def test_the_history_takes_each_publication_once_and_forgets_at_a_new_start() -> None:
    history = overview.History(samples=3)
    for seq in (1, 1, 2, 3, 4):
        history.see({"epoch": 1, "published_seq": seq, "pool": {"active_blocks": 10 * seq}})
    assert history.of("active") == [20, 30, 40]
    assert history.of("waiting") == []
    history.see({"epoch": 2, "published_seq": 1, "pool": {"active_blocks": 5}})
    assert history.of("active") == [5]


def test_findings_of_one_cause_are_one_card_with_their_blocks_and_bytes_summed() -> None:
    alike = [finding(), finding(blocks=[9], since_clock_ns=4_000_000_000), finding(known="else")]
    cards = leaks.judgement({"findings": alike, "clock": {"now_ns": 10_000_000_000}}).cards
    assert [(card.block_count, card.bytes, card.age_seconds) for card in cards] == [(2, 1024, 6.0), (1, 512, 5.0)]
    assert (cards[0].blocks, cards[0].proven) == ((2, 9), True)


def test_a_shared_blocks_candidates_are_not_called_owner_and_unknown_bytes_stay_unknown() -> None:
    row = finding(owner=None, candidates=[{"serial": 1}, {"serial": 2}], bytes=None)
    card = leaks.judgement({"findings": [row]}).cards[0]
    assert (card.proven, card.bytes, card.age_seconds, len(card.people)) == (False, None, None, 2)
    assert card.people[0]["tenant"] == "unknown"


def test_more_blocks_than_are_listed_are_said_to_be_there() -> None:
    card = leaks.judgement({"findings": [finding(blocks=[1, 2], block_count=66)]}).cards[0]
    assert card.listed == "1, 2 and 64 more"


def test_waits_are_stacked_by_cause_for_those_who_waited_longest() -> None:
    rows = [request(n, wait_seconds={"pool": float(n), "step": 0.5}) for n in range(30)] + [request(99)]
    bars = requests.wait_bars(rows, limit=5)
    assert bars.requests[0] == "r29 · 29"
    assert (list(bars.seconds), bars.others) == (["pool", "step"], 25)
    assert bars.seconds["pool"] == (29.0, 28.0, 27.0, 26.0, 25.0)


def test_waits_in_words_are_those_of_all_rows_and_say_how_many_have_a_bar() -> None:
    rows = [request(n, wait_seconds={"pool": 2.0}) for n in range(7)]
    words = requests.waits_caption(rows, requests.wait_bars(rows, limit=5))
    assert ("pool 14.0 s" in words, "the 5 of 7" in words) == (True, True), words
    assert "Drawn" not in requests.waits_caption(rows, requests.wait_bars(rows))


def test_a_request_that_has_no_token_yet_has_no_time_to_it() -> None:
    row = requests.table([request(1)])[0]
    assert (row["first token"], row["waits for"], row["mostly for"]) == (None, "nothing", "nothing")


def test_requests_are_chosen_by_state_and_tenant() -> None:
    rows = [request(1), request(2, state="waiting"), request(3, tenant="umbrella")]
    assert [row["serial"] for row in requests.chosen(rows, states=["running"], tenants=["acme"])] == [1]
    assert len(requests.chosen(rows)) == 3


@pytest.mark.parametrize("status", ["dead", "closed", "frozen", "truncated"])
def test_what_is_not_the_present_is_said_to_be_the_past(status: str) -> None:
    assert "last" in str(engines.warning_of(status, False))


def test_every_word_of_the_vocabulary_is_known_to_the_pages() -> None:
    assert set(engines.GRAVITY) == set(Verdict.words())
    assert set(leaks.MEANINGS) == set(FindingKind.words())
    assert set(palette.CAUSES) == set(WaitCause.words())
    document = {"engines": [{"id": "e:0", "verdict": {"verdict": "healthy", "action": w}} for w in Action.words()]}
    assert all(head.action != "unknown" for head in engines.engine_heads(document))


def test_a_foreign_word_is_shown_letter_by_letter() -> None:
    assert text.literal("![x](http://h/y)") == r"\!\[x\]\(http\://h/y\)"


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.02, "20 ms"), (5, "5.0 s"), (200, "3 min 20 s"), (7260, "2 h 1 min"), (200_000, "2 d 7 h")]
)
def test_durations_are_said_in_two_units(seconds: float, said: str) -> None:
    assert text.duration(seconds) == said


def seconds(mean: float) -> dict[str, float]:
    return {"mean": mean, "p50": mean, "p95": 2 * mean, "p99": 3 * mean}


def test_where_time_went_is_a_row_for_all_each_tenant_and_each_class_with_what_its_mean_is_made_of() -> None:
    whole = {
        "requests": 12,
        "seconds": seconds(2.0),
        "parts": {"wait_pool": seconds(1.5), "allocation": seconds(0.0001), "decode": seconds(0.5)},
    }
    rows = [
        {"tenant": tenant, "request_class": kind, "first_token": None, "whole": whole}
        for tenant, kind in ((None, None), ("acme", None), (None, "batch"))
    ]
    oldest = [{"cause": "batch_slots", "waiting": 3, "seconds": 4.0, "serial": 7, "tenant": "acme", "id_head": "r"}]

    shown = waits.table({"rows": rows, "oldest": oldest})

    assert [row["who"] for row in shown] == ["all", "tenant acme", "class batch"]
    assert {row["what"] for row in shown} == {"whole"}, "no row for a length of time that nobody had"
    assert (shown[0]["P50"], shown[0]["P95"], shown[0]["P99"]) == (2.0, 4.0, 6.0)
    assert shown[0]["mean is made of"] == "pool 1.5 s, decode 500 ms"
    assert shown[0]["P95 of the parts"] == "pool 3.0 s, decode 1.0 s"
    assert waits.oldest({"oldest": oldest}) == (
        "Waiting now for batch slots: 3, the oldest 4.0 s (request 7, tenant acme)."
    )
    assert waits.oldest({"oldest": []}) == "Nobody waits now."
