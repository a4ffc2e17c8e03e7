"""Lanes of the wait queue: requests that go first come, first served, and what all of them wait for.

Owns which lane a request belongs to. Keeps no clock: what a wait costs is the queue's to say.
"""

from __future__ import annotations

from collections import OrderedDict

from kvledger.views import I32
from kvledger.words import RequestClass, WaitCause

_CLASSES = len(RequestClass)


class Lane:
    """Requests that go first come, first served: all there are, or those of one tenant and class.

    `own` is the cause of a lane that has left the queue's clock. `passed` is how many requests of the tenant's other
    classes were admitted since it last had one. An entry is a leader and its group: slots that come and go together.
    """

    __slots__ = ("column", "entries", "kind", "number", "own", "passed")

    def __init__(self, number: int) -> None:
        self.number, (self.column, self.kind) = number, divmod(number, _CLASSES)
        self.entries: OrderedDict[int, I32] = OrderedDict()
        self.own: WaitCause | None = None
        self.passed = 0

    @property
    def head(self) -> I32:
        """The group that is next."""
        return next(iter(self.entries.values()))


def lane_number(column: int, kind: int) -> int:
    """The number of the lane of a tenant, by column, and a class, where each has its own."""
    return column * _CLASSES + kind
