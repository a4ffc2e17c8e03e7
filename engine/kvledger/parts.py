"""Which part of a large section an audit looks at: all of it at first, then one part after the other."""

from __future__ import annotations

AUDITS_PER_ROUND = 16
WHOLE_UP_TO = 1 << 16  # rows that every audit looks at in any case


class Turns:
    """Whose turn it is in one section. `round` numbers the rounds, from 0; the first audit is a round of its own."""

    def __init__(self) -> None:
        self.round = 0
        self._start = 0

    def next(self, size: int) -> slice:
        """The rows of a section of `size` that this audit looks at."""
        first = self.round == 0
        length = size if first else max(-(-size // AUDITS_PER_ROUND), WHOLE_UP_TO)
        part = slice(self._start, min(self._start + length, size))
        self._start = part.stop % size
        self.round += self._start == 0
        return part
