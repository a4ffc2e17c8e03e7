"""The head of a ledger: header page and self-description, checked and parsed. Trusts nothing that a file says."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from kvledger.errors import BadGeometry, NotALedger, OtherVersion, Truncated
from kvledger.layout import (
    BYTE_ORDER_MARK,
    CONTROL_SIZE,
    CONTROL_WORDS,
    CRC_OFFSET,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    MAJOR,
    MAX_DESCRIPTION_BYTES,
    Section,
    bare_sections,
)
from kvledger.limits import Group, Limits
from kvledger.recording import RECORDING_MAGIC, Recording, read_block
from kvledger.source import Source
from kvledger.stats import StatsPlan, plan_from_description

_NEEDED_GAUGES = ("seq", "clock_ns", "monotonic_ns")
_PLAIN_TYPE = re.compile(r"[<|=]?[iuf][1248]|\|?[SV][1-9]\d{0,5}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What does not change during a ledger's life. `recording` is the instant of a recording, None for a ledger."""

    minor: int
    file_bytes: int
    epoch: int
    boot_id: bytes
    pid: int
    pid_start_ticks: int
    created_wall_ns: int
    virtual_clock: bool
    limits: Limits
    sections: Mapping[str, Section]
    control: Mapping[str, int]
    stats: StatsPlan
    recording: Recording | None = None


def read_head(source: Source) -> Head:
    """Read and check header and self-description. Raises `NotALedger`, `OtherVersion` or `Truncated`."""
    header = _header(source)
    raw = source.read(int(header["description_offset"]), int(header["description_bytes"]))
    if zlib.crc32(raw, zlib.crc32(header.tobytes()[:CRC_OFFSET])) != int(header["crc32"]):
        raise NotALedger("the checksum over header and self-description does not match: the file is damaged")
    if source.size() < int(header["file_bytes"]):
        raise Truncated(
            f"{source.size()} bytes where the header says {int(header['file_bytes'])}: the file was cut short"
        )
    try:
        head = _parse(header, json.loads(raw))
    except (BadGeometry, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise NotALedger(f"the self-description makes no sense: {error!r:.200}") from error
    return replace(head, recording=read_block(source)) if bytes(header["magic"]) == RECORDING_MAGIC else head


def _header(source: Source) -> Any:
    if source.size() < HEADER_BYTES:
        raise Truncated(f"{source.size()} bytes: shorter than a ledger's header: no ledger, or one that was cut short")
    header = np.frombuffer(source.read(0, HEADER.itemsize), HEADER)[0]
    if bytes(header["magic"]) not in (MAGIC, RECORDING_MAGIC):
        raise NotALedger("begins with neither KVLEDGER nor KVRECORD: no ledger, and no recording of one")
    if int(header["byte_order"]) != BYTE_ORDER_MARK:
        raise OtherVersion("written on a machine of the other byte order")
    if int(header["major"]) != MAJOR:
        raise OtherVersion(
            f"format version {int(header['major'])}, not {MAJOR}: use the kvledger that came with the engine"
        )
    if int(header["description_bytes"]) > MAX_DESCRIPTION_BYTES:
        raise NotALedger(f"a self-description of {int(header['description_bytes'])} bytes")
    return header


def _parse(header: Any, description: Mapping[str, Any]) -> Head:
    limits = _limits(description["limits"])
    file_bytes = int(header["file_bytes"])
    sections = {s.name: s for s in (_section(entry, file_bytes) for entry in description["sections"])}
    control = {str(word["name"]): int(word["index"]) for word in description["control"]}
    if missing := [name for name, _ in CONTROL_WORDS if not 0 <= control.get(name, -1) < CONTROL_SIZE]:
        raise OtherVersion(f"control words {missing} are missing: written by an older kvledger")
    stats = plan_from_description(description["stats"])
    _check_sections(sections, limits, stats)
    if missing := [name for name in _NEEDED_GAUGES if name not in stats.gauges]:
        raise OtherVersion(f"gauges {missing} are missing: written by an older kvledger")
    return Head(
        minor=int(header["minor"]),
        file_bytes=file_bytes,
        epoch=int(header["epoch"]),
        boot_id=bytes(header["boot_id"]),
        pid=int(header["pid"]),
        pid_start_ticks=int(header["pid_start_ticks"]),
        created_wall_ns=int(header["created_wall_ns"]),
        virtual_clock=bool(header["clock"]),
        limits=limits,
        sections=sections,
        control=control,
        stats=stats,
    )


def _limits(raw: Mapping[str, Any]) -> Limits:
    groups = tuple(Group(**_fields(Group(), group)) for group in raw["groups"])
    pattern = Limits(engine="x", capacity_blocks=1, max_requests=1)
    return Limits(**_fields(pattern, raw) | {"groups": groups})


def _fields(pattern: Limits | Group, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `pattern` that `raw` has, each of the pattern's own kind; a newer writer may have more.

    Raises ValueError: a size that is no whole number, or is below 0, would be believed by whatever comes after.
    """
    known: dict[str, Any] = {}
    for name in (f.name for f in fields(pattern) if f.name in raw and f.name != "groups"):
        value, kind = raw[name], type(getattr(pattern, name))
        if kind is type(None) and value is not None:
            kind = int  # every field that may be unknown is a size
        number = kind is float and type(value) is int
        if not (type(value) is kind or number) or (kind in (int, float) and not 0 <= value < 1 << 62):
            raise ValueError(f"{name}={value!r:.80}")
        known[name] = value
    return known


def _section(entry: Mapping[str, Any], file_bytes: int) -> Section:
    shape = tuple(int(n) for n in entry["shape"])
    section = Section(
        str(entry["name"]), _dtype(entry), shape, str(entry["unit"]), str(entry["help"]), int(entry["offset"])
    )
    if any(n < 1 for n in shape) or section.offset < HEADER_BYTES or section.offset + section.nbytes > file_bytes:
        raise NotALedger(f"section {section.name!r} lies outside the file")
    return section


def _dtype(entry: Mapping[str, Any]) -> np.dtype[Any]:
    kind = entry["type"]
    if isinstance(kind, str):
        dtype = _plain(kind)
    else:
        dtype = np.dtype(
            {
                "names": [str(f["name"]) for f in kind],
                "formats": [(_plain(str(f["type"])), tuple(int(n) for n in f["shape"])) for f in kind],
                "offsets": [int(f["offset"]) for f in kind],
                "itemsize": int(entry["item_bytes"]),
            }
        )
    if dtype.hasobject or dtype.itemsize == 0:
        raise NotALedger(f"section {entry['name']!r} has the impossible type {kind!r:.80}")
    return dtype


def _plain(kind: str) -> np.dtype[Any]:
    if not _PLAIN_TYPE.fullmatch(kind):
        raise ValueError(f"type {kind!r:.80}")
    return np.dtype(kind)


def _check_sections(sections: Mapping[str, Section], limits: Limits, stats: StatsPlan) -> None:
    """Every section this reader uses is there, of the type and shape that the limits demand.

    A newer writer may add sections and ring fields; it may not change these without a new major version.
    """
    if stats.columns != limits.tenant_columns:
        raise NotALedger(f"{stats.columns} tenant columns where its limits demand {limits.tenant_columns}")
    for mine in bare_sections(limits, stats.size):
        name, theirs = mine.name, sections.get(mine.name)
        if theirs is None:
            raise OtherVersion(f"section {name!r} is missing: written by an older kvledger")
        if theirs.shape != mine.shape:
            raise NotALedger(f"section {name!r} has shape {theirs.shape}, its limits demand {mine.shape}")
        if mine.dtype.names is None:
            same = theirs.dtype == mine.dtype
        else:
            same = all(n in (theirs.dtype.names or ()) and theirs.dtype[n] == mine.dtype[n] for n in mine.dtype.names)
        if not same:
            raise OtherVersion(f"section {name!r} has type {theirs.dtype}, this reader knows {mine.dtype}")
