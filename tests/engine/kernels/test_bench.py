"""What `bench.gpu` measures on a card, as far as it goes without one: all see the same, and a missing card is said."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

from bench.gpu.__main__ import main
from bench.gpu.cases import CASES, Case, tensors
from bench.gpu.peers import gathered_sdpa
from kvledger_engine.attention.plan import HeadLayout
from kvledger_engine.kernels.decode import paged_decode, splits_of
from tests.engine.kernels.paged import DEVICE

BOUND = 2e-2
"""As `bench.gpu` has it: queries are bfloat16."""


def small(case: Case) -> Case:
    """A case in the size that the interpreter can do: three rows at most, four query heads of a KV head each."""
    window = 50 if case.window_tokens else 0
    return replace(case, rows=min(case.rows, 3), context_tokens=133, window_tokens=window, layout=HeadLayout(8, 2, 128))


@pytest.mark.parametrize("case", [CASES[0], *CASES[5:]], ids=lambda case: case.name)
def test_ours_and_torchs_over_what_was_gathered_see_the_same_in_every_kind_of_case(case: Case) -> None:
    asked = small(case)
    given = tensors(asked, DEVICE)
    splits = splits_of(asked.rows * asked.layout.kv_heads, asked.seen_tokens, 8)
    ours = paged_decode(given.query, given.cells, given.rows, splits=splits).float()
    theirs = gathered_sdpa(asked, given)().float()
    assert ours.shape == theirs.shape == (asked.rows, 8, 128)
    assert float((ours - theirs).abs().max()) <= BOUND
    assert float(ours.abs().max()) > 5 * BOUND, "they differ from nothing"


@pytest.mark.parametrize(
    ("case", "read"),
    [
        (Case(rows=1, context_tokens=10), 2 * 10 * 8 * 256),
        (Case(rows=2, context_tokens=10, window_tokens=4), 2 * 2 * 4 * 8 * 256),
        (Case(rows=1, context_tokens=10, stored=torch.int8), 2 * 10 * 8 * (128 + 4)),
    ],
)
def test_the_bytes_that_a_decode_must_read_are_keys_values_and_scales_of_what_it_sees(case: Case, read: int) -> None:
    assert case.read_bytes == read


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_without_a_card_nothing_is_measured_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.gpu"])
    assert main() == 1
    assert capsys.readouterr() == ("", "bench.gpu: torch sees no card; nothing was measured\n")
