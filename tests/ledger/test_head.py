"""Headers: an older reader reads a newer ledger as long as what it needs is there and unchanged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvledger.errors import LedgerUnreadable, NotALedger, OtherVersion
from kvledger.head import Head, read_head
from kvledger.reader import Reader
from kvledger.source import MemorySource
from tests.ledger.damage import description, populated, redescribe


def _changed(change: Any) -> bytes:
    """A valid ledger whose description went through `change`."""
    data = bytearray(populated(1, groups=1))
    tree = json.loads(description(data))
    change(tree)
    redescribe(data, json.dumps(tree, separators=(",", ":")).encode())
    return bytes(data)


def _section(tree: Any, name: str) -> Any:
    return next(s for s in tree["sections"] if s["name"] == name)


def _read(change: Any) -> Head:
    return read_head(MemorySource(_changed(change)))


def test_a_newer_ledger_with_more_of_everything_is_read() -> None:
    def newer(tree: Any) -> None:
        control = _section(tree, "control")
        tree["sections"].append(control | {"name": "later.section", "help": "new"})
        tree["control"].append({"name": "later_word", "help": "new", "index": 60})
        tree["limits"]["later_limit"] = 5
        tree["limits"]["groups"][0]["later_size"] = 1
        tree["stats"]["gauges"].append({"name": "later_gauge", "index": 0, "help": "new"})
        counter = {"name": "later_total", "labels": {}, "index": 3, "width": 1, "per_tenant": False}
        tree["stats"]["counters"].append(counter)

    with Reader.over(MemorySource(_changed(newer))) as reader:
        sample = reader.sample()
        assert sample.stats.counter("later_total") is not None
        assert sample.stats.gauge("later_gauge") is not None
        assert reader.audit().damage == []


def test_what_a_ledger_does_not_report_is_unknown_and_not_zero() -> None:
    def older(tree: Any) -> None:
        tree["stats"]["counters"] = [c for c in tree["stats"]["counters"] if c["name"] != "cow_copies_total"]
        tree["stats"]["histograms"] = []
        tree["stats"]["gauges"] = [g for g in tree["stats"]["gauges"] if g["name"] != "waiting"]

    sample = Reader.over(MemorySource(_changed(older))).sample()
    assert sample.stats.counter("cow_copies_total") is None
    assert sample.stats.counter("evictions_total") == 0.0
    assert sample.stats.histogram("allocation") is None
    assert sample.stats.tenant_counter("cow_copies_total") is None
    assert sample.stats.gauge("waiting") is None


def _drop_section(tree: Any) -> None:
    tree["sections"].remove(_section(tree, "block.owner"))


def _drop_word(tree: Any) -> None:
    tree["control"] = [word for word in tree["control"] if word["name"] != "evict_tail"]


def _drop_gauge(tree: Any) -> None:
    tree["stats"]["gauges"] = [gauge for gauge in tree["stats"]["gauges"] if gauge["name"] != "clock_ns"]


def _other_type(tree: Any) -> None:
    _section(tree, "block.ref_count")["type"] = "<u4"


def _outside(tree: Any) -> None:
    _section(tree, "block.ref_count")["offset"] = 1 << 40


def _in_header(tree: Any) -> None:
    _section(tree, "block.ref_count")["offset"] = 8


def _negative(tree: Any) -> None:
    _section(tree, "block.ref_count")["offset"] = -64


def _huge(tree: Any) -> None:
    tree["limits"]["capacity_blocks"] = 1 << 26
    for section in tree["sections"]:
        if section["name"].startswith("block."):
            section["shape"] = [1 << 26]


def _other_shape(tree: Any) -> None:
    _section(tree, "free.list")["shape"] = [4]


def _objects(tree: Any) -> None:
    tree["sections"].append(
        {"name": "x", "type": "O", "item_bytes": 8, "shape": [1], "offset": 8192, "unit": "", "help": ""}
    )


def _word_outside(tree: Any) -> None:
    tree["control"][0]["index"] = 64


def _counter_outside(tree: Any) -> None:
    tree["stats"]["counters"][0]["index"] = tree["stats"]["size"]


def _other_columns(tree: Any) -> None:
    tree["stats"]["columns"] = 1


def _fractional_limit(tree: Any) -> None:
    tree["limits"]["max_requests"] = float(tree["limits"]["max_requests"])


def _text_limit(tree: Any) -> None:
    tree["limits"]["alert_watermark_ratio"] = "0.9"


def _negative_limit(tree: Any) -> None:
    tree["limits"]["groups"][0]["block_bytes"] = -1


def _negative_part(tree: Any) -> None:
    tree["limits"]["reserve_weights_bytes"] = -1


def _text_part(tree: Any) -> None:
    tree["limits"]["reserve_allocator_bytes"] = "much"


def _traversing_name(tree: Any) -> None:
    tree["limits"]["engine"] = "../../etc"


def _no_list(tree: Any) -> None:
    tree["sections"] = 7


CASES: list[tuple[Any, type[LedgerUnreadable]]] = [
    (_drop_section, OtherVersion),
    (_drop_word, OtherVersion),
    (_drop_gauge, OtherVersion),
    (_other_type, OtherVersion),
    (_word_outside, OtherVersion),
    (_outside, NotALedger),
    (_in_header, NotALedger),
    (_negative, NotALedger),
    (_huge, NotALedger),
    (_other_shape, NotALedger),
    (_objects, NotALedger),
    (_counter_outside, NotALedger),
    (_other_columns, NotALedger),
    (_fractional_limit, NotALedger),
    (_text_limit, NotALedger),
    (_negative_limit, NotALedger),
    (_negative_part, NotALedger),
    (_text_part, NotALedger),
    (_traversing_name, NotALedger),
    (_no_list, NotALedger),
]


@pytest.mark.parametrize(("change", "error"), CASES, ids=[case[0].__name__.strip("_") for case in CASES])
def test_a_description_that_cannot_be_relied_on_is_refused_by_type(change: Any, error: type[LedgerUnreadable]) -> None:
    with pytest.raises(error):
        _read(change)


def test_a_description_of_nested_brackets_is_refused() -> None:
    data = bytearray(populated(1, groups=1))
    redescribe(data, b"[" * 20_000)
    with pytest.raises(NotALedger):
        read_head(MemorySource(bytes(data)))
