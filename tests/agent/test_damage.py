"""Damaged ledgers: whatever a file says, the agent gives an observation it can show, or the reader's typed error."""

from __future__ import annotations

import json
import time
from collections import Counter
from contextlib import closing

import numpy as np
import pytest

from kvledger.errors import LedgerUnreadable
from kvledger.reader import Reader
from kvledger.source import MemorySource
from kvledger_agent.block_rows import BlockQuery, block_page, compact_blocks
from kvledger_agent.documents import requests_document, snapshot_document
from kvledger_agent.exporters.page import MetricsPage
from kvledger_agent.fleet import Fleet
from kvledger_agent.ledger_source import LedgerSource
from kvledger_agent.request_rows import request_rows
from kvledger_agent.screen import console, engine_panel
from kvledger_agent.tables import request_table
from tests.ledger.damage import Case, cases

SEED = 77_001
LOOKS = 3


def show_everything(source: LedgerSource) -> str:
    """Look a few times, then show it every way there is; the engine's status."""
    with np.errstate(all="ignore"):  # sums of damaged numbers may overflow
        for _ in range(LOOKS):
            observation = source.look()
        fleet = Fleet(round=1, sampled_ns=0, observations=(observation,), sources=())
        MetricsPage().render(fleet, accept="", now_ns=time.monotonic_ns())
        sample, audit = source.reader.sample(), source.reader.audit()
        documents = (
            snapshot_document(observation),
            requests_document(sample, audit),
            block_page(audit, BlockQuery(owner=3), now_ns=sample.now_ns),
            compact_blocks(audit),
        )
        assert len(json.dumps(documents, allow_nan=False)) < 1 << 21
        with console().capture():
            console().print(engine_panel(observation), request_table(request_rows(sample, audit)))
    return observation.liveness.status


def end_of(case: Case, *, live: bool) -> str:
    try:
        reader = Reader.over(MemorySource(bytes(case.data), writer_lives=live))
        with closing(LedgerSource(reader)) as source:
            return show_everything(source)
    except LedgerUnreadable as error:
        return type(error).__name__
    except BaseException:
        print(f"damaged ledger {case.name}, live={live}")
        raise


@pytest.mark.slow
def test_a_damaged_ledger_gives_an_observation_that_can_be_shown_or_a_typed_error() -> None:
    ends = Counter(end_of(case, live=number % 2 == 0) for number, case in enumerate(cases(200, SEED)))

    assert sum(n for end, n in ends.items() if end.islower()) > 60, f"too few were read at all: {ends}"
