"""Allocation: the words for how blocks are placed. What they do is `kvcache`'s and `contiguous`'s."""

from __future__ import annotations

from enum import StrEnum


class Allocation(StrEnum):
    """How blocks are placed: anywhere, through tables; in a run for the longest context; in a run that grows."""

    PAGED = "paged"
    RESERVE = "reserve"
    GROW = "grow"
