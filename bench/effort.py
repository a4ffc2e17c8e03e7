"""How much a run measures, and how far it is. Rows ask it for their rounds; it knows no row."""

from __future__ import annotations

from collections.abc import Callable, Iterator

OnProgress = Callable[[int, int], None]
"""Called with (rounds done, rounds in all)."""


class Effort:
    """Full, or `quick`: few windows, for trying things out. `whole`: all of a trace, where a part of it is usual."""

    def __init__(self, *, quick: bool, whole: bool = False, on_progress: OnProgress | None = None) -> None:
        self.quick, self.whole = quick, whole
        self.on_progress = on_progress or (lambda done, total: None)

    def choose(self, full: int, quick: int) -> int:
        """One of two sizes."""
        return quick if self.quick else full

    def rounds(self, full: int, quick: int) -> Iterator[int]:
        """Numbers of rounds to do, from 0; each is reported when the next one is asked for."""
        total = self.choose(full, quick)
        self.on_progress(0, total)
        for number in range(total):
            yield number
            self.on_progress(number + 1, total)
