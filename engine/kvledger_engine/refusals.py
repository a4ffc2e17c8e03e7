"""Refusals: which heads of lanes were turned away lately, and for what, so that they need not be looked up every time.

Owns how long a refusal holds. Turns nobody away itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.views import U64
from kvledger.words import WaitCause
from kvledger_engine.lanes import Lane

LOOK_AGAIN_STEPS = 16
"""A head that was turned away is looked up again after so many schedules: its prefix may be cached by now."""
Room = tuple[float, float]
"""Blocks that a tenant has room for: of its own, and of what is lent."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a head was turned away, with how much room there was then, and when."""

    serial: int
    room: Room
    cause: WaitCause
    schedule: int


class Refusals:
    """The last refusal of every lane; `serials` are those of all slots."""

    def __init__(self, serials: U64) -> None:
        self._serials, self._schedule = serials, 0
        self._by_lane: dict[int, Refusal] = {}

    def begin_schedule(self) -> None:
        """A schedule looks at the lanes."""
        self._schedule += 1

    def note(self, lane: Lane, cause: WaitCause, room: Room) -> None:
        """The head of a lane is turned away now."""
        self._by_lane[lane.number] = Refusal(self._head_serial(lane), room, cause, self._schedule)

    def of(self, lane: Lane) -> Refusal | None:
        """The last refusal of the request that is a lane's head; None if it was never turned away."""
        found = self._by_lane.get(lane.number)
        return None if found is None or found.serial != self._head_serial(lane) else found

    def still_holds(self, lane: Lane, room: Room) -> WaitCause | None:
        """The cause for which a lane's head was turned away lately, if there is no more room than there was."""
        found = self.of(lane)
        if found is None or self._schedule - found.schedule >= LOOK_AGAIN_STEPS:
            return None
        return None if room[0] > found.room[0] or room[1] > found.room[1] else found.cause

    def _head_serial(self, lane: Lane) -> int:
        return self._serials.item(lane.head.item(0))
