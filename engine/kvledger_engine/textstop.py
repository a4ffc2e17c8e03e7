"""Stop strings in text that comes in pieces. Owns what is held back until it is no beginning of a stop string."""

from __future__ import annotations

from collections.abc import Sequence


class TextStop:
    """Cuts a text before the first stop string that is complete, wherever the pieces are divided."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """What is certain now and was not handed out before. Nothing comes after a stop."""
        if not self._stops or self.stopped:
            return "" if self.stopped else text
        text, self._held = self._held + text, ""
        found = self._first(text)
        if found is not None:
            self.stopped = True
            return text[:found]
        held = self._beginning(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def end(self) -> str:
        """The rest: the beginning of a stop string that stays incomplete."""
        rest, self._held = self._held, ""
        return rest

    def _first(self, text: str) -> int | None:
        """Where the stop string begins that is complete first; the longest of those that end together."""
        ends = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        return min(ends)[1] if ends else None

    def _beginning(self, text: str) -> int:
        """Characters at the end of `text` that may become a stop string; the most of them."""
        longest = min(len(text), max(map(len, self._stops)) - 1)
        for held in range(longest, 0, -1):
            if any(len(stop) > held and text.endswith(stop[:held]) for stop in self._stops):
                return held
        return 0
