"""Prefix accounts: one amount entered for many requests at once, each in the account of its prefix."""

from __future__ import annotations

from kvledger.views import F64, I64
from kvledger_engine.compiled.kernel import kernel


@kernel("void(f8[:], i8[::1], i8[:], f8)")
def enter(column: F64, row_of_slot: I64, slots: I64, each: float) -> None:
    """Add `each` to the account of every one of `slots` I64[n], which lies in `column` at row_of_slot[slot]."""
    for slot in slots:
        column[row_of_slot[slot]] += each
