"""How the content of a sequence that gives way comes back: a pure choice. Who gives way is `victims`'."""

from __future__ import annotations

from kvledger.words import PreemptionMode


def preemption_mode(*, saved_blocks: int, copied_blocks: int, free_blocks: int) -> PreemptionMode:
    """How the content of a sequence that gives way comes back.

    It is swapped if it has any, `saved_blocks`, and those of them that are in no host block yet, `copied_blocks`, fit
    into the `free_blocks` of the host pool: all of it or nothing.
    """
    fits = saved_blocks > 0 and copied_blocks <= free_blocks
    return PreemptionMode.SWAP if fits else PreemptionMode.RECOMPUTE
