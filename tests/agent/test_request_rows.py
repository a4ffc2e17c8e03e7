"""Live requests one by one, and blocks in pages or whole: what the API shows of who holds what."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from kvledger.words import BlockState
from kvledger_agent.block_rows import BlockQuery, block_page, compact_blocks
from kvledger_agent.documents import pin_rows
from kvledger_agent.request_rows import RequestRow, request_rows
from kvledger_engine.messages import NewRequest
from kvledger_engine.quotafile import parse_quotas
from tests.agent.rig import NS, EngineWatch, ToyWatch


def rows(watch: EngineWatch) -> list[RequestRow]:
    return request_rows(watch.source.reader.sample(), watch.source.reader.audit())


def two_sharing() -> EngineWatch:
    sharing = parse_quotas({"tenants": {f"t{number}": {"share_group": "all"} for number in range(3)}})
    watch = EngineWatch(max_num_seqs=2, quotas=sharing)
    for number, name in enumerate(("first", "second", "third")):
        watch.loop.submit(
            NewRequest(request_id=name, prompt=[*range(8), number], max_tokens=12, tenant=f"t{number}", salt="one")
        )
        watch.loop.step()
    return watch


def test_a_row_says_who_holds_how_many_blocks_and_how_many_of_them_are_shared() -> None:
    first, second, third = rows(two_sharing())

    assert (first.id_head, first.tenant, first.state, first.prompt_tokens) == ("first", "t0", "running", 9)
    assert (first.blocks, first.shared_blocks) == (3, 2)
    assert (second.blocks, second.shared_blocks, second.hit_tokens) == (3, 2, 8)
    assert (third.state, third.blocks, third.wait_cause) == ("waiting", 0, "batch_slots")


def test_the_waits_of_a_row_add_up_to_its_whole_wait() -> None:
    watch = two_sharing()
    watch.clock.advance(2 * NS)
    watch.loop.step()
    third = rows(watch)[2]

    assert sum(third.wait_seconds.values()) == pytest.approx(third.age_seconds)


def test_block_seconds_of_requests_add_up_to_what_the_tenants_are_charged() -> None:
    watch = two_sharing()
    for _ in range(4):
        watch.clock.advance(NS)
        watch.loop.step()
    charged = watch.look().totals.counters["block_seconds_total"]

    assert sum(row.block_seconds for row in rows(watch)) == pytest.approx(sum(charged.values()))


def test_no_row_holds_anything_of_a_prompt() -> None:
    fields = set(RequestRow.__dataclass_fields__)

    assert not {name for name in fields if "text" in name or "ids" in name or name in ("prompt", "output", "tokens")}


def test_blocks_come_in_pages_by_state_and_owner() -> None:
    watch = two_sharing()
    audit = watch.source.reader.audit()
    active = block_page(audit, BlockQuery(state=BlockState.ACTIVE, limit=3), now_ns=watch.clock.now_ns())
    owned = block_page(audit, BlockQuery(owner=1), now_ns=watch.clock.now_ns())

    assert (active["total"], len(active["blocks"]), active["consistent"]) == (4, 3, True)
    assert {block["owner"] for block in owned["blocks"]} == {1}
    assert [block["ref_count"] for block in owned["blocks"]] == [2, 2, 1]
    rest = block_page(audit, BlockQuery(state=BlockState.ACTIVE, offset=3), now_ns=0)
    assert len(rest["blocks"]) == 1


def test_the_compact_form_holds_every_block() -> None:
    watch = two_sharing()
    document = compact_blocks(watch.source.reader.audit())

    decoded = {
        name: np.frombuffer(base64.b64decode(array["data"]), array["type"])
        for name, array in document["arrays"].items()
    }
    assert decoded["state"].tolist() == watch.ledger.blocks.state.tolist()
    assert decoded["ref_count"].tolist() == watch.ledger.blocks.ref_count.tolist()
    assert decoded["owner"].tolist() == watch.ledger.blocks.owner.tolist()


def test_pins_say_what_is_left_of_their_lease() -> None:
    watch = ToyWatch()
    block = watch.toy.table(watch.admit(1))[0]
    watch.ledger.begin()
    watch.toy.pin(block, lease_ns=5 * NS)
    watch.toy.pin(block)
    watch.toy.count()
    watch.ledger.end()
    watch.look()

    leased, endless = pin_rows(watch.source.reader.sample())
    assert (leased["kind"], leased["block"], leased["lease_left_seconds"]) == ("transfer", block, pytest.approx(4.0))
    assert endless["lease_left_seconds"] is None
