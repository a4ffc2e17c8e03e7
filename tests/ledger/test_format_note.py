"""docs/ledger-format.md says what the code does: its tables, its example and its header are the code's."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from kvledger.recording import BLOCK, BLOCK_OFFSET
from kvledger.status import ReadStatus
from tests.ledger import format_note

NOTE = Path(__file__).parents[2] / "docs" / "ledger-format.md"
SIZES = {"u16": 2, "u32": 4, "u64": 8, "i64": 8, "8 bytes": 8, "16 bytes": 16}
_ROW = re.compile(r"^\| (\d+) \| (u16|u32|u64|i64|\d+ bytes) \|", re.MULTILINE)


def _block(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- generated: {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)


@pytest.mark.parametrize("name", format_note.BLOCKS)
def test_every_generated_part_of_the_note_is_what_the_code_gives_now(name: str) -> None:
    text, wanted = NOTE.read_text(), format_note.BLOCKS[name]()
    if os.environ.get("UPDATE_GOLDEN") == "1":
        text = _block(name).sub(lambda found: f"{found[1]}{wanted}\n{found[2]}", text)
        NOTE.write_text(text)
    found = _block(name).search(text)
    assert found is not None, f"{name} has no place in the note"
    assert found[0].split("-->\n", 1)[1].removesuffix("\n<!-- end -->") == wanted, "run with UPDATE_GOLDEN=1"


def test_the_header_tables_of_the_note_have_every_field_at_its_place() -> None:
    rows = [(int(offset), SIZES[kind]) for offset, kind in _ROW.findall(NOTE.read_text())]
    assert BLOCK.fields is not None
    recorded = [(BLOCK_OFFSET + int(BLOCK.fields[name][1]), BLOCK[name].itemsize) for name in BLOCK.names or ()]
    assert rows == [*format_note.header_rows(), *recorded]


def test_the_note_names_every_status_that_a_ledger_can_have() -> None:
    text = NOTE.read_text()
    for status in (
        ReadStatus.OK, ReadStatus.IDLE, ReadStatus.FROZEN, ReadStatus.CLOSED, ReadStatus.DEAD, ReadStatus.ABANDONED
    ):  # fmt: skip
        assert f"| `{status.value}` |" in text


def test_the_numbers_the_example_is_explained_with_are_in_it() -> None:
    dump = format_note.example_dump()
    explained = re.search(
        r"`free_count` is 5 \(word 6, at `0x([0-9a-f]+)`\).*`stats_index` is 2", NOTE.read_text(), re.DOTALL
    )
    assert explained is not None
    free_count = int(explained[1], 16)
    assert f"{free_count:08x}  05 00 00 00" in dump
    assert f"{free_count - 4 * 8:08x}  02 00 00 00" in dump
    assert "# stats, buffer 0" in dump
