"""The tokens of a row of steps of the same requests, each of which gets one token a step: all counted as one."""

from __future__ import annotations

from kvledger.writer import Ledger
from kvledger_vllm.cells import Cells
from kvledger_vllm.tokens import MOST_IN_FLIGHT, Tokens


class TokenRow:
    """Steps that were scheduled, and times of their outputs. Changes nothing before `apply`."""

    def __init__(self, ledger: Ledger, tokens: Tokens) -> None:
        self._tokens, self._slots = tokens, Cells(ledger.slots)
        self._scheduled: list[int] = []
        self._updated_ns: list[int] = []

    def may_schedule(self) -> bool:
        """Whether one more step can be in flight without one being given up."""
        return len(self._tokens.in_flight) + len(self._scheduled) - len(self._updated_ns) < MOST_IN_FLIGHT

    def schedule(self, step: int) -> None:
        """The same requests as in the last schedule do the same in this one."""
        self._scheduled.append(step)

    def update(self, step: int, now_ns: int) -> bool:
        """Each of them got a token; False where the oldest step in flight is another one, or another's, or a first."""
        ahead, at = self._tokens.in_flight, len(self._updated_ns)
        if at < len(ahead):
            number, members, _ = ahead[at]
            if number != step or members is not self._tokens.members:
                return False
        elif at - len(ahead) >= len(self._scheduled) or self._scheduled[at - len(ahead)] != step:
            return False
        if not at and not self._tokens.have_output():
            return False
        self._updated_ns.append(now_ns)
        return True

    def proves(self, slot: int, computed: int, output: int) -> bool:
        """Whether a slot's counts will be these, once one more step has been scheduled."""
        slots, count = self._slots, self._tokens.count_of(slot)
        generated = len(self._updated_ns) if count else 0
        said: bool = slots.computed_tokens[slot] + count * (len(self._scheduled) + 1) == computed
        return said and slots.output_tokens[slot] + generated == output

    def apply(self) -> None:
        """Count everything, in the publication that is open."""
        self._tokens.went_on(self._scheduled, self._updated_ns)

    def clear(self) -> None:
        """Everything is counted."""
        self._scheduled.clear()
        self._updated_ns.clear()
