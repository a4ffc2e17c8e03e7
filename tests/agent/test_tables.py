"""The tables people read, at the widths of their terminals: no word is torn, no leak is shown twice."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from rich.console import Console, RenderableType

from kvledger.words import FindingKind
from kvledger_agent.finding import Finding, RequestRef
from kvledger_agent.findings import merged
from kvledger_agent.request_rows import RequestRow
from kvledger_agent.tables import findings_table, request_table

WIDTHS = (80, 120)
ID = "cmpl-47303f1c2ab94d5f8a7c6b5d4e3f2a19c8b7d6e5f4a3b2c1497ed"


def shown(table: RenderableType, width: int) -> list[str]:
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(table)
    return capture.get().splitlines()


def row(serial: int = 123456, **known: Any) -> RequestRow:
    waits = {"pool": 0.502, "step": 0.1, "scheduler": 0.02}
    plain = RequestRow(
        serial=serial,
        parent_serial=None,
        id_head=ID[:40],
        id_tail=ID[-16:],
        tenant="umbrella",
        request_class="interactive",
        state="preempted",
        blocks=128,
        shared_blocks=77,
        peak_blocks=130,
        prompt_tokens=1024,
        computed_tokens=1200,
        output_tokens=176,
        max_tokens=256,
        hit_tokens=0,
        preemptions=1,
        age_seconds=1234.5,
        wait_cause="pool",
        wait_seconds=waits,
        time_to_first_block_seconds=None,
        time_to_first_token_seconds=None,
        block_seconds=1.0,
    )
    return replace(plain, **known)


def leak(seq: int = 7, blocks: tuple[int, ...] = (4, 5), **known: Any) -> Finding:
    owner = RequestRef(serial=12, id_head=ID[:40], id_tail=ID[-16:], tenant="acme", ended="cancelled:disconnect")
    found = Finding(
        kind=FindingKind.EXCESS_REFERENCE,
        blocks=blocks,
        block_count=len(blocks),
        bytes=1024 * len(blocks),
        seq=seq,
        since_clock_ns=seq,
        since_wall_seconds=datetime.now().replace(hour=12, minute=3, second=4).timestamp(),
        found_clock_ns=2 * seq,
        seen_clock_ns=3 * seq,
        owner=owner,
        candidates=(),
        known="no other request ever held these blocks",
    )
    return replace(found, **known)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_request_is_one_row_in_which_no_word_is_torn(width: int) -> None:
    lines = shown(request_table([row()]), width)
    screen = "\n".join(lines)

    for words in ("123456", "umbrella", "preempted", "128", "1200/1024+256", "1234 s", "prompt+out"):
        assert words in screen
    (line,) = [line for line in lines if "123456" in line]
    assert "cmpl-47" in line
    assert "7ed" in line
    assert max(map(len, lines)) <= width
    assert " ".join(screen.split()).count("…") == 1, "only the id is shortened"


@pytest.mark.parametrize("width", WIDTHS)
def test_only_the_id_and_the_tenant_give_way_where_everything_is_long(width: int) -> None:
    long = row(
        tenant="the-tenant-with-the-longest-name", state="preempted", wait_seconds={"tenant_quota": 12.5, "step": 1}
    )
    screen = "\n".join(shown(request_table([long]), width))

    for words in ("123456", "preempted", "tenant_quota", "12.5 s +1", "1200/1024+256", "1234 s", "the-"):
        assert words in screen
    assert screen.count("…") == 2


def test_the_column_of_shared_blocks_and_the_long_id_need_columns() -> None:
    narrow, wide = ("\n".join(shown(request_table([row()]), width)) for width in (80, 200))

    assert "cmpl-4730…497ed" in narrow
    assert "shared" not in narrow
    assert "shared" in wide
    assert "computed/prompt+out" in wide
    assert f"{ID[:40]}…{ID[-16:]}" in wide


def test_the_longest_wait_is_shown_and_how_many_more_there_are() -> None:
    lines = shown(request_table([row(), row(2, wait_seconds={"step": 2.0}), row(3, wait_seconds={})]), 120)

    waits = {
        line.split()[0]: line.partition("1200/1024+256")[2].rpartition("1234 s")[0].strip()
        for line in lines
        if "1234" in line
    }
    assert waits == {"123456": "pool 502 ms +2", "2": "step 2.0 s", "3": ""}


def test_requests_beyond_the_most_that_are_shown_are_counted() -> None:
    screen = "\n".join(shown(request_table([row(serial) for serial in range(43)]), 120))

    assert "… and 3 more with fewer blocks" in screen


@pytest.mark.parametrize("width", WIDTHS)
def test_a_finding_names_tenant_time_and_end_and_no_word_is_torn(width: int) -> None:
    screen = "\n".join(shown(findings_table([leak()]), width - 4))

    for words in ("excess_reference", "since 12:03:04", "acme", "cmpl-4730…497ed", "cancelled: disconnect", "4, 5"):
        assert words in screen


def test_a_finding_without_a_wall_time_shows_none() -> None:
    assert "since" not in "\n".join(shown(findings_table([leak(since_wall_seconds=None)]), 120))


def test_a_leak_whose_blocks_changed_one_by_one_is_one_row() -> None:
    other = leak(9, (1, 2, 3), known="something else is known")

    one, second = merged([leak(8, (9,)), leak(7, (4, 5)), other])

    assert (one.blocks, one.block_count, one.bytes) == ((4, 5, 9), 3, 3072)
    assert (one.seq, one.since_clock_ns, one.found_clock_ns, one.seen_clock_ns) == (7, 7, 14, 24)
    assert second == other
    assert sum("excess_reference" in line for line in shown(findings_table([leak(8, (9,)), leak()]), 120)) == 1


def test_bytes_of_merged_findings_are_unknown_where_one_is() -> None:
    assert merged([leak(), leak(8, bytes=None)])[0].bytes is None


def test_candidates_beyond_the_first_four_are_counted() -> None:
    refs = tuple(RequestRef(serial=serial) for serial in range(1, 8))

    screen = "\n".join(shown(findings_table([leak(owner=None, candidates=refs)]), 120))

    assert screen.count("candidate") == 4
    assert "… 3 more" in screen
