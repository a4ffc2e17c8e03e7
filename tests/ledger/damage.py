"""Damaged ledgers: valid, populated images with a few bytes changed, evenly over their sections. Seeded."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvledger.clock import VirtualClock
from kvledger.head import read_head
from kvledger.layout import CRC_OFFSET, HEADER, HEADER_BYTES, Section
from kvledger.source import MemorySource
from kvledger.words import RequestState
from kvledger.writer import Ledger
from tests.ledger.toy import Toy, toy_limits

_POWERS = (6, 7, 8, 12, 15, 16, 26, 31, 32, 53, 62, 63, 64)
INTERESTING = (0, 1, 2, 3, *(1 << power for power in _POWERS), *((1 << power) - 1 for power in _POWERS))


def seal(data: bytearray) -> None:
    """Make the header's checksum true again, whatever the header says about the description."""
    header = np.frombuffer(bytes(data[: HEADER.itemsize]), HEADER)[0]
    start, length = int(header["description_offset"]), int(header["description_bytes"])
    crc = zlib.crc32(bytes(data[start : start + length]), zlib.crc32(bytes(data[:CRC_OFFSET])))
    data[CRC_OFFSET : CRC_OFFSET + 4] = crc.to_bytes(4, "little")


def redescribe(data: bytearray, text: bytes) -> None:
    """Put another self-description into an image and seal it."""
    room = len(description(data)) + 2048
    assert len(text) <= room
    data[HEADER_BYTES : HEADER_BYTES + len(text)] = text
    data[28:32] = len(text).to_bytes(4, "little")
    seal(data)


def description(data: bytearray) -> bytes:
    """The self-description of an image."""
    return bytes(data[HEADER_BYTES : HEADER_BYTES + int.from_bytes(data[28:32], "little")])


@dataclass(frozen=True)
class Case:
    """One damaged ledger and what was done to it."""

    name: str
    data: bytearray


def populated(seed: int, *, groups: int) -> bytes:
    """A valid image in the middle of its life."""
    clock = VirtualClock()
    ledger = Ledger.in_memory(toy_limits(48, groups=groups), clock=clock)
    toy = Toy(ledger, seed)
    for name in ("acme", "globex"):
        ledger.tenant_column(name)
    for _ in range(60):
        clock.advance(7_000_000)
        toy.step()
    ledger.begin()
    while len(toy.live) < 3:
        toy.admit(2)
    for slot in toy.live[:2]:
        toy.pin(toy.table(slot)[0], lease_ns=60_000_000_000)
    ledger.slots.state[toy.live[0]], ledger.slots.finishing_ns[toy.live[0]] = RequestState.FINISHING, ledger.now_ns
    ledger.slots.state[toy.live[1]], ledger.slots.queue[toy.live[1]] = RequestState.WAITING, 0
    toy.count()
    ledger.end()
    return bytes(ledger.image)


def cases(count: int, seed: int) -> Iterator[Case]:
    """`count` damaged ledgers, half in their sections in turn, half in header, description or length.

    The checksum covers header and description only. It is made true again for half of what is damaged there, so that
    what they claim is believed.
    """
    rng = random.Random(seed)
    bases = [populated(seed + i, groups=1 + i % 2) for i in range(4)]
    heads = [read_head(MemorySource(base)) for base in bases]
    sections = list(heads[0].sections)
    others = ("header", "header", "description", "description", "length", "json", "json", "json", "json")
    for number in range(count):
        at = rng.randrange(len(bases))
        data, stratum = (
            bytearray(bases[at]),
            rng.choice(others) if number % 2 else sections[number // 2 % len(sections)],
        )
        if stratum == "length":
            del data[rng.randrange(len(data)) :]
        elif stratum == "json":
            redescribe(data, _other_json(rng, description(data)))
        else:
            start, length = _where(stratum, data, heads[at].sections)
            _damage(rng, data, start, length)
            if stratum in ("header", "description") and rng.random() < 0.5:
                seal(data)
        yield Case(f"{seed}:{number}:{stratum}", data)


def _where(stratum: str, data: bytearray, sections: Mapping[str, Section]) -> tuple[int, int]:
    if stratum == "header":
        return 0, CRC_OFFSET
    if stratum == "description":
        return HEADER_BYTES, len(description(data))
    return sections[stratum].offset, sections[stratum].nbytes


def _damage(rng: random.Random, data: bytearray, start: int, length: int) -> None:
    for _ in range(rng.choice((1, 1, 2, 5, 40))):
        width = rng.choice((1, 2, 4, 8))
        at = start + rng.randrange(max(1, length - width + 1)) // width * width
        value = rng.choice(INTERESTING) if rng.random() < 0.6 else rng.getrandbits(64)
        data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "little")
    if rng.random() < 0.1:
        end = start + rng.randrange(length) + 1
        data[start:end] = rng.choice((b"\0", b"\xff", b"\x80")) * (end - start)


def _other_json(rng: random.Random, text: bytes) -> bytes:
    """The description with a value changed, dropped or replaced by something of another kind."""
    tree = json.loads(text)
    node, key = _pick(rng, tree)
    how = rng.random()
    if how < 0.2:
        del node[key]
    elif how < 0.35 and isinstance(node[key], dict | list):
        node[key] = rng.choice(({}, [], None, 0, "x"))
    else:
        node[key] = _other_value(rng, node[key])
    return json.dumps(tree, separators=(",", ":")).encode()


def _pick(rng: random.Random, tree: Any) -> tuple[Any, Any]:
    """(container, key) of something in the tree, the small branches as likely as the large ones."""
    node = tree
    while True:
        key = rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
        child = node[key]
        if not isinstance(child, dict | list) or not child or rng.random() < 0.15:
            return node, key
        node = child


def _other_value(rng: random.Random, value: Any) -> Any:
    if isinstance(value, int) and rng.random() < 0.7:
        return rng.choice((value + 1, value - 1, -value, value * 2, value + 64, *INTERESTING, 10**30, -1, float(value)))
    if isinstance(value, str) and rng.random() < 0.5:
        return rng.choice(
            (value + "x", value[:-1], "", "<i4", "<u8", "<f8", "O", "V8", "a5", "f8,f8", ">i4", "S999999999")
        )
    return rng.choice((None, True, -1, 1.5, 1e308, float("nan"), "", "x", [], [0], {}, {"a": 1}, 2**40, 2**70))
