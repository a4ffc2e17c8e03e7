"""Which part of a large section an audit looks at: all of it at first, then one part after the other."""

from __future__ import annotations

AUDITS_PER_ROUND = 16
WHOLE_UP_TO = 1 << 16  # rows that every audit looks at in any case


class Turns:
    """Whose turn it is in one section: a part in every `every`-th audit, so that all have had theirs in one round.

    `round` numbers the rounds, from 0, of `audits` each; the first audit is a round of its own.
    """

    def __init__(self, *, every: int = 1, audits: int = AUDITS_PER_ROUND) -> None:
        self.round = 0
        self._every, self._audits, self._rest, self._start = every, audits, 0, 0

    def next(self, size: int) -> slice:
        """The rows of a section of `size` that this audit looks at; none while it is not its turn."""
        length = max(-(-size * self._every // self._audits), WHOLE_UP_TO)
        if self._rest and length < size:
            self._rest -= 1
            return slice(self._start, self._start)
        part = slice(self._start, size if self.round == 0 else min(self._start + length, size))
        self._rest, self._start = self._every - 1, part.stop % size
        self.round += self._start == 0
        return part
