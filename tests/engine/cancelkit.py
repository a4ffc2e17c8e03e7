"""Every state a request can be cancelled in, as an engine that gets there, and every point of a step to do it at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.snapshot import NOT_LOOKED_AT, SlotTable
from kvledger.views import I32
from kvledger.words import PinKind, RequestState
from kvledger_engine.batch import Batch
from kvledger_engine.messages import NewRequest
from tests.engine.rig import STEP_NS, Rig, oracle, request

SIZES = {"capacity_blocks": 12, "max_num_batched_tokens": 16}
SWAP = {"preemption": "swap", "swap_blocks": 12, "prefix_caching": False}
X = "x"


class Point(StrEnum):
    """Where in a step the cancel arrives. What arrives while a step runs is acted on at its end."""

    BETWEEN = "between two steps"
    PLANNED = "planned, nothing computed"
    COMPUTING = "half computed"
    COMPUTED = "computed, nothing applied"


IN_STEP = (Point.PLANNED, Point.COMPUTING, Point.COMPUTED)
RELEASE_NS = {Point.BETWEEN: 0, Point.PLANNED: STEP_NS, Point.COMPUTING: STEP_NS // 2, Point.COMPUTED: 0}
"""From the arrival to the end of the step, which takes STEP_NS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """How a state comes about: `requests`, "x" among them, and `holds` on x's slots once it is there.

    `sequences` of x live then. `drains` at once.
    """

    requests: tuple[NewRequest, ...]
    holds: Callable[[Rig, SlotTable, NDArray[np.bool_]], bool]
    state: RequestState
    sequences: int = 1
    config: dict[str, Any] = field(default_factory=dict)
    points: tuple[Point, ...] = tuple(Point)
    drains: bool = False


def _always(rig: Rig, slots: SlotTable, mine: NDArray[np.bool_]) -> bool:
    return True


def _looked_at(rig: Rig, slots: SlotTable, mine: NDArray[np.bool_]) -> bool:
    return bool((slots.queue[mine] != NOT_LOOKED_AT).all())


def _prefilling(rig: Rig, slots: SlotTable, mine: NDArray[np.bool_]) -> bool:
    return bool((slots.computed_tokens[mine].max() > 0) & (slots.output_tokens[mine] == 0).all())


def _decoding(rig: Rig, slots: SlotTable, mine: NDArray[np.bool_]) -> bool:
    return bool((slots.output_tokens[mine] >= 2).all())


def _moving_out(rig: Rig, slots: SlotTable, mine: NDArray[np.bool_]) -> bool:
    return len(rig.loop._cache.swaps._transfers.out_hosts) > 0


def _saved(rig: Rig, slots: SlotTable, mine: NDArray[np.bool_]) -> bool:
    return rig.loop._cache.swaps.used_blocks > 0 and not len(rig.loop._cache.swaps._transfers)


def _moving_in(rig: Rig, slots: SlotTable, mine: NDArray[np.bool_]) -> bool:
    return len(rig.loop._cache.swaps._transfers._in_hosts) > 0


def _copying(rig: Rig, slots: SlotTable, mine: NDArray[np.bool_]) -> bool:
    return bool((rig.sample().pins.kind == PinKind.COPY_ON_WRITE).any())


def _forked(rig: Rig, slots: SlotTable, mine: NDArray[np.bool_]) -> bool:
    return bool((slots.output_tokens[mine] == 1).all())


_OTHER = request("other", 20, 20)
_SHORT = request("other", 20, 12)
_STOPS = oracle([5] * 9, 9, seed=1, temperature=1.0)[2]
_GIVES_WAY = (_OTHER, request(X, 8, 20))

SCENES = {
    "not looked at": Scene(
        requests=(_OTHER,), holds=_always, state=RequestState.WAITING
    ),  # x arrives where it is cancelled
    "waiting": Scene(requests=(_OTHER, request(X, 30, 9)), holds=_looked_at, state=RequestState.WAITING),
    "prefilling": Scene(
        requests=(request("other", 4, 20), request(X, 36, 4)), holds=_prefilling, state=RequestState.RUNNING
    ),
    "decoding": Scene(
        requests=(request("other", 8, 9), request(X, 8, 16)), holds=_decoding, state=RequestState.RUNNING
    ),
    "preempted": Scene(requests=_GIVES_WAY, holds=_always, state=RequestState.PREEMPTED),
    "swapping out": Scene(
        requests=_GIVES_WAY, holds=_moving_out, state=RequestState.SWAPPED, config=SWAP, points=IN_STEP
    ),
    "swapped": Scene(requests=_GIVES_WAY, holds=_saved, state=RequestState.SWAPPED, config=SWAP),
    "swapping in": Scene(
        requests=(_SHORT, request(X, 8, 20)),
        holds=_moving_in,
        state=RequestState.RUNNING,
        config=SWAP,
        points=IN_STEP,
    ),
    "copy-on-write in flight": Scene(
        requests=(request(X, 9, 9, n=3, temperature=1.0),),
        holds=_copying,
        state=RequestState.RUNNING,
        sequences=3,
        points=IN_STEP,
    ),
    "to be forked": Scene(
        requests=(request(X, 30, 3, n=2, temperature=1.0),),
        holds=_prefilling,
        state=RequestState.RUNNING,
        sequences=2,
    ),
    "just forked": Scene(
        requests=(request(X, 9, 9, n=3, temperature=1.0),), holds=_forked, state=RequestState.RUNNING, sequences=3
    ),
    "partly finished": Scene(
        requests=(request(X, [5] * 9, 9, n=3, temperature=1.0, seed=1, stop_tokens=[_STOPS]),),
        holds=_always,
        state=RequestState.RUNNING,
        sequences=2,
    ),
    "draining": Scene(
        requests=(request("other", 8, 9), request(X, 8, 16)), holds=_decoding, state=RequestState.RUNNING, drains=True
    ),
    "draining, waiting": Scene(
        requests=(_OTHER, request(X, 30, 9)), holds=_looked_at, state=RequestState.WAITING, drains=True
    ),
}


class Stage:
    """The rig's cell model in two halves of a step's time; `visit` is told at every point of it."""

    def __init__(self) -> None:
        self.rig: Rig | None = None
        self.visit: Callable[[Point], None] = lambda _: None

    def execute(self, batch: Batch) -> I32:
        """See `Compute.execute`."""
        assert self.rig is not None
        self.visit(Point.PLANNED)
        self.rig.clock.advance(STEP_NS // 2)
        sampled = self.rig.cells.execute(batch)
        self.visit(Point.COMPUTING)
        self.rig.clock.advance(STEP_NS // 2)
        self.visit(Point.COMPUTED)
        return sampled


class Staged:
    """An engine in a scene. `arrive` runs it until the state is there."""

    def __init__(self, scene: Scene, **timeouts: float | None) -> None:
        self.scene, stage = scene, Stage()
        self.rig = Rig(compute=stage, max_model_len_tokens=48, **(SIZES | scene.config))
        stage.rig, self._stage = self.rig, stage
        requests = scene.requests
        if timeouts:
            requests = tuple(_with(new, timeouts) if new.request_id == X else new for new in requests)
        assert self.rig.submit(*requests) == []
        if scene.drains:
            self.rig.loop.drain()

    @property
    def brings_x(self) -> bool:
        """Whether x is yet to arrive: the state is that of a request no schedule has seen."""
        return all(new.request_id != X for new in self.scene.requests)

    def is_there(self) -> bool:
        """Whether the ledger shows the state."""
        slots = self.rig.sample().slots
        mine = slots.id_head == X.encode()
        if self.brings_x:
            return self.rig.count("generation_tokens_total") >= 2
        here = np.count_nonzero(mine) == self.scene.sequences and (slots.state[mine] == self.scene.state).all()
        return bool(here) and self.scene.holds(self.rig, slots, mine)

    def arrive(self, point: Point) -> int:
        """Step until the state is there at `point`, and to the end of that step. Returns when that was, in ns."""
        found: list[int] = []

        def visit(now: Point) -> None:
            if now is Point.PLANNED and not found and self.is_there():
                found.append(-1)
            if now is point and found == [-1]:
                found[0] = self.rig.clock.now_ns()

        if point is Point.BETWEEN:
            while not self.is_there():
                self._step()
            return self.rig.clock.now_ns()
        self._stage.visit = visit
        while not found:
            self._step()
        self._stage.visit = lambda _: None
        return found[0]

    def _step(self) -> None:
        assert self.rig.loop.has_work, "the state never came about"
        self.rig.step()


def _with(new: NewRequest, timeouts: dict[str, float | None]) -> NewRequest:
    fields = {name: getattr(new, name) for name in new.__struct_fields__}
    return NewRequest(**(fields | timeouts))
