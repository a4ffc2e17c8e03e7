"""A ledger that one process creates and another writes: nothing published is lost, and its life is its creator's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvledger import segment
from kvledger.adoption import adopt
from kvledger.clock import VirtualClock
from kvledger.errors import BadGeometry
from kvledger.layout import CONTROL_INDEX
from kvledger.reader import Reader
from kvledger.source import MemorySource
from kvledger.writer import Ledger
from tests.ledger.toy import toy_limits

pytestmark = [pytest.mark.needs("tmpfs")]


@contextmanager
def created(directory: Path) -> Iterator[Ledger]:
    """The second ledger of an engine, which has inherited a counter and a tenant of the first."""
    with Ledger.create(directory, toy_limits(), clock=VirtualClock()) as first:
        first.tenant_column("acme")
        first.stats.values[first.stats.counter("evictions_total")] = 7
        first.publish_now()
    ledger = Ledger.create(directory, toy_limits(), clock=VirtualClock())
    yield ledger
    ledger.leave(clean=False)


def test_what_the_creator_has_published_goes_on_in_the_adopted_ledger(memory: Path) -> None:
    with created(memory) as creator:
        clock = VirtualClock(5_000_000_000)
        adopted = adopt(creator.descriptor, toy_limits(), clock)
        assert adopted.tenant_column("acme") == 0
        assert adopted.tenant_column("other-one") == 1
        adopted.stats.values[adopted.stats.counter("evictions_total")] += 1
        clock.advance(1_000)
        assert adopted.begin() == 2
        adopted.end()
        with Reader.over(MemorySource(creator.image)) as reader:
            sample = reader.sample()
        assert (sample.published_seq, sample.stats.whole("clock_ns")) == (2, 5_000_001_000)
        assert sample.stats.counter("evictions_total") == 8
        assert sample.tenants[:2] == ("acme", "other-one")


def test_the_creator_leaves_what_another_has_published_last(memory: Path) -> None:
    with created(memory) as creator:
        path = creator.path
        assert path is not None
        adopted = adopt(creator.descriptor, toy_limits(), VirtualClock())
        for _ in range(3):
            adopted.publish_now()
        creator.leave(clean=True)
        creator.leave(clean=True)
        assert segment.writer_of(path) is None
        with Reader.open(path) as reader:
            sample = reader.sample()
        assert (sample.published_seq, sample.control["closed"]) == (4, 1)
        adopted.instrument_failed("after all")
        assert creator.control[CONTROL_INDEX["instrument_failed"]] == 1


def test_a_ledger_that_was_laid_out_otherwise_is_not_adopted(memory: Path) -> None:
    with created(memory) as creator, pytest.raises(BadGeometry, match="other limits"):
        adopt(creator.descriptor, toy_limits(500), VirtualClock())
