"""The tables and the worked example of docs/ledger-format.md, as the code has them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from kvledger import words
from kvledger.clock import VirtualClock
from kvledger.layout import (
    CONTROL_WORDS,
    CRC_OFFSET,
    EVENT,
    HEADER,
    PEAK,
    PREFIX_ACCOUNT,
    PREFIX_ACCOUNTS,
    SUMMARY,
    bare_sections,
    plan_layout,
)
from kvledger.limits import Group, Limits
from kvledger.stats import GAUGES
from kvledger.writer import Ledger
from tests.ledger.toy import BLOCK_TOKENS, Toy

WORD_SETS = (
    words.BlockState, words.RequestState, words.WaitCause, words.FinishReason, words.CancelCause, words.PinKind,
    words.RequestClass, words.Event, words.RejectionReason, words.ReleaseCause, words.StepPhase,
)  # fmt: skip
EXAMPLE_LIMITS = Limits(
    engine="tiny",
    capacity_blocks=8,
    max_requests=2,
    groups=(Group(name="full", block_size_tokens=BLOCK_TOKENS),),
    chunk_blocks=4,
    max_pins=2,
    max_tenants=1,
    event_records=4,
    summary_records=2,
    peak_records=4,
)


def _table(columns: str, rows: Iterable[Iterable[object]]) -> str:
    names = columns.split(", ")
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def control_words() -> str:
    """Every control word."""
    return _table("index, word, meaning", ((i, f"`{name}`", text) for i, (name, text) in enumerate(CONTROL_WORDS)))


def gauges() -> str:
    """Every published gauge."""
    return _table("gauge, meaning", ((f"`{name}`", text) for name, text in GAUGES))


def sections() -> str:
    """Every section, its shape in names of limits."""
    limits = Limits(
        engine="x",
        capacity_blocks=1009,
        max_requests=101,
        groups=(Group(), Group(), Group()),
        chunk_blocks=67,
        max_pins=307,
        max_tenants=30,
        event_records=503,
        summary_records=401,
        peak_records=211,
    )
    names = {name: getattr(limits, name) for name in ("capacity_blocks", "max_requests", "chunk_blocks")}
    names |= {name: getattr(limits, name) for name in ("event_records", "summary_records", "peak_records")}
    derived = {"arena_chunks", "index_slots", "pin_records", "tenant_columns"}
    names |= {name: getattr(limits, name) for name in sorted(derived)}
    size = plan_layout(limits).stats.size
    names |= {"groups": 3, "causes": 10, "words": 64, "buffers": 2, "stats.size": size}
    names["prefixes + 1"] = PREFIX_ACCOUNTS + 1
    names["1"] = 1
    by_number = {number: name for name, number in names.items()}
    assert len(by_number) == len(names), "two sizes are equal: choose other limits"
    return _table(
        "section, type, shape, unit, meaning",
        (
            (
                f"`{s.name}`",
                f"`{s.dtype.str}`" if s.dtype.names is None else f"record, {s.dtype.itemsize} bytes",
                " × ".join(by_number[n] for n in s.shape),
                s.unit,
                s.help,
            )
            for s in bare_sections(limits, size)
        ),
    )


def records() -> str:
    """The records of the three rings, and those of prefixes."""
    kinds = {"ring.events": EVENT, "ring.summaries": SUMMARY, "ring.peaks": PEAK, "prefix.accounts": PREFIX_ACCOUNT}
    tables = []
    for name, dtype in kinds.items():
        assert dtype.fields is not None
        rows = (
            (
                dtype.fields[field][1],
                f"`{dtype[field].base.str}`" + "".join(f" × {n}" for n in dtype[field].shape),
                field,
            )
            for field in dtype.names or ()
        )
        tables.append(f"`{name}`, {dtype.itemsize} bytes:\n\n" + _table("offset, type, field", rows))
    return "\n\n".join(tables)


def numbers() -> str:
    """The stored numbers of every word."""
    return _table(
        "set, number and word", ((kind.__name__, ", ".join(f"{w.value} {w.word}" for w in kind)) for kind in WORD_SETS)
    )


def header_rows() -> list[tuple[int, int]]:
    """(offset, bytes) of every header field."""
    assert HEADER.fields is not None
    return [(int(HEADER.fields[name][1]), HEADER[name].itemsize) for name in HEADER.names or ()]


# -- the worked example -------------------------------------------------------------------------------------------


def example_ledger() -> bytes:
    """A ledger of eight blocks on a virtual clock; what differs from run to run is set to fixed values."""
    ledger = Ledger.in_memory(EXAMPLE_LIMITS, clock=VirtualClock())
    toy = Toy(ledger)
    ledger.begin()
    slot = toy.admit(3)
    toy.pin(toy.table(slot)[0], lease_ns=5_000_000_000)
    ledger.tenant_column("acme")
    toy.count()
    ledger.end()
    data = np.frombuffer(bytes(ledger.image), np.uint8).copy()
    header = data[: HEADER.itemsize].view(HEADER)
    header["boot_id"] = np.void(bytes(range(16)))
    header["pid"], header["pid_start_ticks"], header["created_wall_ns"] = 4242, 1000, 1_700_000_000_000_000_000
    header["crc32"] = zlib.crc32(ledger.layout.description, zlib.crc32(data[:CRC_OFFSET].tobytes()))
    return data.tobytes()


def example_description() -> str:
    """The self-description of the example: one entry of each kind."""
    whole = json.loads(plan_layout(EXAMPLE_LIMITS).description)
    stats, sections = whole["stats"], whole["sections"]
    by_name = {section["name"]: section for section in sections}
    events = by_name["ring.events"]
    kinds: list[tuple[str, Any]] = [
        ("limits", whole["limits"]),
        ("control[0]", whole["control"][0]),
        ("sections: block.ref_count", by_name["block.ref_count"]),
        ("sections: ring.events, first two of its fields", events | {"type": events["type"][:2]}),
        ("stats.size, stats.columns", {key: stats[key] for key in ("size", "columns")}),
        ("stats.gauges[0]", stats["gauges"][0]),
        ("stats.wait_clock", stats["wait_clock"]),
        ("stats.tenant_blocks", stats["tenant_blocks"]),
        ("stats.counters: a single value", next(c for c in stats["counters"] if not c["per_tenant"])),
        ("stats.counters: one value per tenant column", next(c for c in stats["counters"] if c["per_tenant"])),
        ("stats.histograms[0]", stats["histograms"][0]),
    ]
    return "```\n" + "\n".join(f"{name}\n    {json.dumps(value)}" for name, value in kinds) + "\n```"


def example_dump() -> str:
    """The parts of the example that matter, in hexadecimal."""
    data, layout = example_ledger(), plan_layout(EXAMPLE_LIMITS)
    gauges = len(GAUGES) * 8
    shown: list[tuple[str, int, int]] = [("header", 0, 96), ("self-description, its first bytes", 4096, 32)]
    lengths = {
        "control": len(CONTROL_WORDS) * 8, "block.ref_count": 32, "block.state": 8, "block.owner": 64,
        "block.changed_seq": 64, "free.list": 32, "arena.chunk": 32, "arena.next": 8, "pin.block": 8, "pin.kind": 2,
        "pin.lease_ns": 16, "tenant.name": 128, "slot.serial": 16, "slot.state": 2, "slot.changed_seq": 16,
        "slot.id_head": 40, "slot.table_blocks": 8, "slot.first_chunk": 8, "ring.events": 64,
    }  # fmt: skip
    for name, length in lengths.items():
        shown.append((name, layout.sections[name].offset, length))
        if name == "control":
            index = 1 if data[layout.sections["control"].offset + 16] & 1 else 0
            start = layout.sections["stats"].offset + index * 8 * layout.stats.size
            shown.append((f"stats, buffer {index}, the gauges", start, gauges))
    lines = []
    for title, start, length in sorted(shown, key=lambda part: part[1]):
        lines += [f"# {title}", *_hex(data[start : start + length], start)]
    return "```\n" + "\n".join(lines) + "\n```"


def _hex(data: bytes, start: int) -> Iterable[str]:
    for offset in range(0, len(data), 16):
        line = data[offset : offset + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        yield f"{start + offset:08x}  {line.hex(' '):<47}  |{text}|"


BLOCKS: dict[str, Callable[[], str]] = {
    "control words": control_words,
    "sections": sections,
    "ring records": records,
    "gauges": gauges,
    "numbers": numbers,
    "example: self-description": example_description,
    "example: dump": example_dump,
}
