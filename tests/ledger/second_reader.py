"""A second reader of ledgers and recordings, written from docs/ledger-format.md alone: the standard library, no numpy.

It imports nothing of this project, so that what it reads is what the note says and not what the code does.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import struct
import time
import zlib
from dataclasses import dataclass
from typing import Any

HEADER = struct.Struct("<8sHHIQIIQ16sQQqII")
RECORDED = struct.Struct("<16sqqqqQQI")
FLOCK = struct.Struct("hh4xqqi4x")
MAGICS = {b"KVLEDGER": False, b"KVRECORD": True}
LOOKS = 500
WAITING = (1, 3, 4)  # RequestState: waiting, preempted, swapped
NOT_LOOKED_AT = 255
STEP = "step"
_CODES = {"i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q", "f4": "f", "f8": "d"}


class Unreadable(Exception):
    """No ledger, damaged, cut short, of another version, or never at rest."""


@dataclass(frozen=True)
class Field:
    """One field of a record, or the only one of a plain item: `count` values of `code`."""

    name: str
    code: str
    offset: int
    count: int


@dataclass(frozen=True)
class Section:
    """One array of the file."""

    fields: tuple[Field, ...]
    plain: bool
    item_bytes: int
    shape: tuple[int, ...]
    offset: int

    @property
    def rows(self) -> int:
        """Length of the first dimension."""
        return self.shape[0]

    @property
    def width(self) -> int:
        """Items in a row."""
        width = 1
        for n in self.shape[1:]:
            width *= n
        return width


def _code(text: str) -> str:
    kind = text.lstrip("<|")
    if kind[:1] in ("S", "V"):
        return f"{int(kind[1:])}s"
    if kind not in _CODES:
        raise Unreadable(f"type {text!r}")
    return _CODES[kind]


def _section(entry: dict[str, Any], file_bytes: int) -> Section:
    kind, item_bytes = entry["type"], int(entry["item_bytes"])
    if isinstance(kind, str):
        fields: tuple[Field, ...] = (Field("", _code(kind), 0, 1),)
    else:
        fields = tuple(Field(f["name"], _code(f["type"]), int(f["offset"]), max(1, sum(f["shape"][:1]))) for f in kind)
    section = Section(fields, isinstance(kind, str), item_bytes, tuple(map(int, entry["shape"])), int(entry["offset"]))
    end = section.offset + section.rows * section.width * item_bytes
    if min(section.shape) < 1 or not 4096 <= section.offset <= end <= file_bytes:
        raise Unreadable(f"section {entry['name']!r} lies outside the file")
    for field in fields:
        if not 0 <= field.offset <= field.offset + field.count * struct.calcsize("<" + field.code) <= item_bytes:
            raise Unreadable(f"field {field.name!r} lies outside its record")
    return section


class SecondReader:
    """One ledger or recording, open for reading."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(self.fd).st_mode):
                raise Unreadable("not a regular file")
            self._read_head()
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError, struct.error) as error:
            self.close()
            raise Unreadable(f"the self-description makes no sense: {error!r}") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self.fd)

    def __enter__(self) -> SecondReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _bytes(self, offset: int, length: int) -> bytes:
        data = os.pread(self.fd, length, offset)
        if len(data) != length:
            raise Unreadable(f"{len(data)} of {length} bytes at {offset}: cut short")
        return data

    # -- head -----------------------------------------------------------------------------------------------------

    def _read_head(self) -> None:
        raw = self._bytes(0, 4096)
        (
            magic, major, self.minor, order, self.file_bytes, at, length, self.epoch, self.boot_id,
            self.pid, self.pid_start_ticks, self.created_wall_ns, clock, crc,
        ) = HEADER.unpack_from(raw)  # fmt: skip
        if magic not in MAGICS or order != 0x01020304 or major != 1:
            raise Unreadable(f"magic {magic!r}, version {major}, byte order {order:#x}")
        if length > 16 << 20:
            raise Unreadable(f"a self-description of {length} bytes")
        description = self._bytes(at, length)
        if zlib.crc32(raw[:84] + description) != crc:
            raise Unreadable("the checksum of header and self-description is wrong")
        if os.fstat(self.fd).st_size < self.file_bytes:
            raise Unreadable("cut short")
        self.virtual = clock == 1
        self._parse(json.loads(description))
        self.recorded = self._recorded(raw) if MAGICS[magic] else None

    def _parse(self, described: dict[str, Any]) -> None:
        self.limits: dict[str, Any] = described["limits"]
        self.control = {word["name"]: int(word["index"]) for word in described["control"]}
        self.sections = {s["name"]: _section(s, self.file_bytes) for s in described["sections"]}
        self.stats: dict[str, Any] = described["stats"]
        if any(not 0 <= index < 64 for index in self.control.values()):
            raise Unreadable("a control word lies outside its section")

    def _recorded(self, raw: bytes) -> dict[str, Any]:
        if zlib.crc32(raw[128:252]) != struct.unpack_from("<I", raw, 252)[0]:
            raise Unreadable("the checksum of the recording's time and status is wrong")
        status, wall, monotonic, now, age, blocks, requests, body = RECORDED.unpack_from(raw, 128)
        crc = 0
        for offset in range(4096, self.file_bytes, 1 << 20):
            crc = zlib.crc32(self._bytes(offset, min(1 << 20, self.file_bytes - offset)), crc)
        if crc != body:
            raise Unreadable("the checksum of the recording is wrong")
        return {
            "status": _text(status),
            "wall_ns": wall,
            "monotonic_ns": monotonic,
            "now_ns": now,
            "heartbeat_age_seconds": None if age == -1 else age / 1e9,
            "blocks_in_motion": blocks,
            "requests_in_motion": requests,
        }

    # -- arrays ---------------------------------------------------------------------------------------------------

    def column(self, name: str, start: int = 0, rows: int | None = None) -> list[Any]:
        """Rows of a section: values, lists of values for a two-dimensional one, dicts for records."""
        section = self.sections[name]
        rows = section.rows - start if rows is None else rows
        size = section.item_bytes * section.width
        data = self._bytes(section.offset + start * size, rows * size)
        if not section.plain:
            return [_record(section, data, row * size) for row in range(rows)]
        flat = [value for (value,) in struct.iter_unpack("<" + section.fields[0].code, data)]
        width = section.width
        return flat if len(section.shape) == 1 else [flat[i : i + width] for i in range(0, len(flat), width)]

    def words(self) -> dict[str, int]:
        """The control words."""
        values = self.column("control")
        return {name: values[index] for name, index in self.control.items()}

    # -- liveness -------------------------------------------------------------------------------------------------

    def writer_lives(self) -> bool:
        """Whether somebody holds the writer's lock."""
        query = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        return bool(FLOCK.unpack(fcntl.fcntl(self.fd, fcntl.F_GETLK, query))[0] != fcntl.F_UNLCK)

    def status(self) -> str:
        """The state of the engine; for a recording, the one it had then."""
        if self.recorded is not None:
            return str(self.recorded["status"])
        words = self.words()
        if words["abandoned"]:
            return "abandoned"
        if words["closed"]:
            return "closed"
        if not self.writer_lives():
            return "dead"
        if words["idle_since_ns"]:
            return "idle"
        values = self.stats_vector()[1]
        beat = values[self._gauge_index("monotonic_ns")]
        with open("/proc/sys/kernel/random/boot_id") as file:
            same_boot = bytes.fromhex(file.read().strip().replace("-", "")) == self.boot_id
        known = same_boot and not self.virtual and beat > 0
        limit = max(3.0, 20 * sum(_p99(h) for h in self._histograms(values) if h["name"] == STEP))
        return "frozen" if known and (time.monotonic_ns() - beat) / 1e9 > limit else "ok"

    # -- stats ----------------------------------------------------------------------------------------------------

    def stats_vector(self) -> tuple[int, list[float]]:
        """(published_seq before, the values of one complete publication)."""
        for _ in range(LOOKS):
            published = self.words()["published_seq"]
            index = self.words()["stats_index"]
            (values,) = self.column("stats", index % 2, 1)
            after = self.words()
            if after["stats_index"] == index or after["writing_seq"] <= published + 1:
                return published, values
        raise Unreadable("no complete publication")

    def _gauge_index(self, name: str) -> int:
        return next(int(g["index"]) for g in self.stats["gauges"] if g["name"] == name)

    def tenants(self) -> dict[str, int]:
        """Tenant -> column, `other` last."""
        names, last = self.column("tenant.name"), self.stats["columns"] - 1
        used = min(max(self.words()["tenant_count"], 0), last)
        return {_text(names[column]): column for column in (*range(used), last)}

    def sample(self) -> dict[str, Any]:
        """Gauges, counters, histograms, tenants, live requests and pins."""
        _, values = self.stats_vector()
        tenants = self.tenants()
        slots, left_out = self.slots()
        quotas = self.column("tenant.quota_blocks")
        blocks_at, clock_at = self.stats["tenant_blocks"]["index"], self.stats["wait_clock"]["index"]
        causes = self.stats["wait_clock"]["causes"]
        return {
            "gauges": {g["name"]: values[g["index"]] for g in self.stats["gauges"]},
            "wait_clock": dict(zip(causes, values[clock_at : clock_at + len(causes)], strict=True)),
            "tenant_blocks": {name: values[blocks_at + column] for name, column in tenants.items()},
            "tenant_quota_blocks": {n: quotas[c] for n, c in tenants.items() if quotas[c] > 0},
            "counters": self._counters(values, tenants),
            "histograms": {_key(h): h for h in self._histograms(values)},
            "slots": slots,
            "left_out": left_out,
            "pins": self.pins(),
        }

    def _counters(self, values: list[float], tenants: dict[str, int]) -> dict[Any, Any]:
        counters: dict[Any, Any] = {}
        for c in self.stats["counters"]:
            per_tenant = {name: values[c["index"] + column] for name, column in tenants.items()}
            counters[_key(c)] = per_tenant if c["per_tenant"] else values[c["index"]]
        return counters

    def _histograms(self, values: list[float]) -> list[dict[str, Any]]:
        found = []
        for h in self.stats["histograms"]:
            end = h["index"] + len(h["bounds"]) + 1
            found.append(
                {"name": h["name"], "labels": h["labels"], "bounds": h["bounds"]}
                | {"buckets": values[h["index"] : end], "sum": values[end]}
            )
        return found

    # -- requests and pins ----------------------------------------------------------------------------------------

    def slots(self) -> tuple[list[dict[str, Any]], int]:
        """Live requests of one state each, by slot; and how many were being changed at every look."""
        for _ in range(3):
            published = self.words()["published_seq"]
            rows = self._rows()
            settled = [row for row in rows if row["changed_seq"] <= published]
            if len(settled) == len(rows):
                break
        return settled, len(rows) - len(settled)

    def _rows(self) -> list[dict[str, Any]]:
        names = [n.removeprefix("slot.") for n in self.sections if n.startswith("slot.") and n != "slot.free_slots"]
        names.remove("changed_seq")
        columns = {name: self.column(f"slot.{name}") for name in names}
        columns["changed_seq"] = self.column("slot.changed_seq")  # the stamps last
        live = [slot for slot, serial in enumerate(columns["serial"]) if serial]
        return [{"slot": slot} | {name: column[slot] for name, column in columns.items()} for slot in live]

    def wait_seconds(self, sample: dict[str, Any], now_ns: int) -> list[dict[str, float]]:
        """Seconds each live request has waited, by cause, the open wait included."""
        causes, gauges = self.stats["wait_clock"]["causes"], sample["gauges"]
        clock = dict(sample["wait_clock"])
        clock[causes[int(gauges["queue_cause"])]] += max(0.0, (now_ns - gauges["queue_since_ns"]) / 1e9)
        found = []
        for row in sample["slots"]:
            waits = dict(zip(causes, row["wait_seconds"], strict=True))
            if row["state"] in WAITING and 1 <= row["queue"] <= len(causes):
                alone = causes[row["queue"] - 1]
                waits[alone] += max(0.0, now_ns / 1e9 - row["wait_base"][row["queue"] - 1])
            elif row["state"] in WAITING and row["queue"] != NOT_LOOKED_AT:
                for cause, base in zip(causes, row["wait_base"], strict=True):
                    waits[cause] += max(0.0, clock[cause] - base)
            elif row["state"] in WAITING:
                waits[STEP] += max(0.0, (now_ns - row["queued_ns"]) / 1e9)
            found.append(waits)
        return found

    def pins(self) -> list[dict[str, Any]]:
        """Pins in use, by entry; those that changed meanwhile are left out."""
        names = ("block", "kind", "holder", "since_ns", "lease_ns")
        columns = {name: self.column(f"pin.{name}") for name in names}
        again = self.column("pin.block"), self.column("pin.since_ns")
        capacity = self.limits["capacity_blocks"]
        return [
            {"entry": entry} | {name: columns[name][entry] for name in names}
            for entry, block in enumerate(columns["block"])
            if 0 <= block < capacity and (block, columns["since_ns"][entry]) == (again[0][entry], again[1][entry])
        ]

    # -- the audit ------------------------------------------------------------------------------------------------

    def audit(self) -> dict[str, Any]:
        """Block tables and what contradicts itself among the blocks that can be judged."""
        published = self.words()["published_seq"]
        words, capacity = self.words(), self.limits["capacity_blocks"]
        tables = self._tables(self._rows())
        free = self.column("free.list", 0, min(max(words["free_count"], 0), capacity))
        references = [0] * capacity
        for block in [b for table in tables.values() for b in table] + [pin["block"] for pin in self.pins()]:
            if 0 <= block < capacity:
                references[block] += 1
        counted, tickets = self.column("block.ref_count"), self.column("block.evict_ticket")
        evictable = self._evictable(tickets, words)
        stamps = self.column("block.changed_seq")
        listed = [0] * capacity
        for block in free:
            listed[block] += 1
        places = [listed[b] + evictable[b] + (counted[b] > 0) for b in range(capacity)]
        stable = [stamp <= published for stamp in stamps]
        return {
            "published_seq": published,
            "tables": tables,
            "free": free,
            "stable": stable,
            "evictable": [b for b in range(capacity) if evictable[b]],
            "wrong_references": {
                b: counted[b] - references[b] for b in range(capacity) if stable[b] and counted[b] != references[b]
            },
            "wrong_places": {b: places[b] for b in range(capacity) if stable[b] and places[b] != 1},
        }

    def _tables(self, rows: list[dict[str, Any]]) -> dict[tuple[int, int], list[int]]:
        chain, chunks = self.column("arena.next"), self.column("arena.chunk")
        again = {name: self.column(f"slot.{name}") for name in ("serial", "preemptions", "first_chunk", "table_blocks")}
        tables: dict[tuple[int, int], list[int]] = {}
        for row in rows:
            slot, groups = row["slot"], range(len(row["table_blocks"]))
            broken = any(again[name][slot] != row[name] for name in ("serial", "preemptions", "first_chunk"))
            broken |= any(again["table_blocks"][slot][g] < row["table_blocks"][g] for g in groups)
            for group in groups:
                length = 0 if broken else row["table_blocks"][group]
                tables[slot, group] = _follow(chain, chunks, row["first_chunk"][group], length)
        return tables

    def _evictable(self, tickets: list[int], words: dict[str, int]) -> list[bool]:
        ring = self.column("evict.ring")
        first, last = words["evict_head"], words["evict_tail"]
        return [first <= t < last and ring[t % len(ring)] == block for block, t in enumerate(tickets)]

    # -- rings ----------------------------------------------------------------------------------------------------

    def ring(self, name: str, since: int) -> tuple[list[dict[str, Any]], int]:
        """(records of `events` or `summaries` from number `since` on, how many before them were lost)."""
        head = max(self.words()[f"{name}_head"], 0)
        copy = self.column(f"ring.{name}")
        reserved = self.words()[f"{name}_reserved"]
        since = since if 0 <= since <= head else 0
        first = min(head, max(since, head - len(copy), reserved - len(copy)))
        return [copy[i % len(copy)] for i in range(first, head)], first - since

    def peaks(self) -> list[dict[str, Any]]:
        """Per-second peaks, oldest first."""
        copy = self.column("ring.peaks")
        for _ in range(LOOKS):
            again = self.column("ring.peaks")
            if again == copy:
                break
            copy = again
        kept = [r for slot, r in enumerate(copy) if r["second"] > 0 and r["second"] % len(copy) == slot]
        return sorted(kept, key=lambda record: int(record["second"]))


def _record(section: Section, data: bytes, at: int) -> dict[str, Any]:
    found = {}
    for field in section.fields:
        if field.code.endswith("s"):
            values = struct.unpack_from(f"<{field.code}", data, at + field.offset)
        else:
            values = struct.unpack_from(f"<{field.count}{field.code}", data, at + field.offset)
        found[field.name] = list(values) if field.count > 1 else values[0]
    return found


def _follow(chain: list[int], chunks: list[list[int]], chunk: int, length: int) -> list[int]:
    table: list[int] = []
    while len(table) < length <= len(chunks) * len(chunks[0]) and 0 <= chunk < len(chunks):
        table += chunks[chunk]
        chunk = chain[chunk]
    return table[: max(length, 0)]


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode(errors="replace")


def _key(entry: dict[str, Any]) -> tuple[str, tuple[tuple[str, str], ...]]:
    return entry["name"], tuple(sorted(entry["labels"].items()))


def _p99(histogram: dict[str, Any]) -> float:
    total, seen = sum(histogram["buckets"]), 0.0
    if not total > 0:
        return 0.0
    for bound, count in zip(histogram["bounds"], histogram["buckets"], strict=False):
        seen += count
        if seen >= 0.99 * total:
            return float(bound)
    return float(histogram["bounds"][-1])
