"""What `bench.cancel` measures: every state of the protocol, each of which comes about and gives all back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.cancel import PAGE
from bench.cancelcases import CASES, Cancels, Case
from tests.engine.cancelkit import SCENES


def test_every_state_that_is_tested_is_measured_and_on_the_page() -> None:
    names = [case.name for case in CASES]
    assert set(SCENES) <= set(names)
    measured = PAGE.read_text().split("<!-- measured -->")[1]
    rows = re.findall(r"^\| ([a-z][^|]*?) \| \d+ \| \d+ \| \d+ µs \|", measured, re.MULTILINE)
    assert rows == names


@pytest.mark.needs("tmpfs")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_state_comes_about_twice_and_its_blocks_are_back_each_time(case: Case, memory: Path) -> None:
    cancels = Cancels(memory, case)
    for seconds, held in cancels.seconds(2):
        assert seconds > 0
        assert (held > 0) == (case.name in {c.name for c in CASES if c.state.word == "running"})
    assert cancels.ledger.blocks.ref_count.sum() == 0
    cancels.ledger.close()
