"""A second vLLM plugin, for tests: holds the engine core right after a publication and says what vLLM's objects hold.

Active only if KVLEDGER_TEST_HOOK names a directory with the socket of a `tests.vllm.conductor`. Lines of JSON go both
ways. The engine stands still until the test lets it go on, so that an agent can look at exactly that publication.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvledger.layout import CONTROL_INDEX
from kvledger_vllm.message import OTHER, SCHEDULE, UPDATE
from tests.vllm.defects import Defects
from tests.vllm.deferral import Deferral
from tests.vllm.truth import truth_of

VARIABLE = "KVLEDGER_TEST_HOOK"
SOCKET = "hook.sock"
PATIENCE_SECONDS = 120.0
FREE = 10**9
"""So many publications until the next hold: the engine is free."""
_REASONS = {
    "FINISHED_STOPPED": "stop",
    "FINISHED_LENGTH_CAPPED": "length",
    "FINISHED_ABORTED": "cancelled",
    "FINISHED_ERROR": "engine_error",
}


class Planted(Exception):
    """What a test told the hook to raise into the instrument."""


Attach = Callable[[Any, Any], Any]
"""`kvledger_vllm.attach.attach`: (scheduler, settings) -> instrument."""


def register() -> None:
    """The entry point: from now on every scheduler that gets a ledger is held when the test wants it."""

    def holding(original: Attach, socket_path: Path) -> Attach:
        def attach(scheduler: Any, settings: Any) -> Any:
            instrument = original(scheduler, settings)
            if instrument.tap is not None:
                Hold(socket_path, scheduler, instrument).put_in()
            return instrument

        return attach

    replace_attach(holding)


def replace_attach(make: Callable[[Attach, Path], Attach]) -> None:
    """Put `make(original, the conductor's socket)` in the place of `attach`, if there is a conductor. Idempotent."""
    directory = os.environ.get(VARIABLE)
    if not directory:
        return
    from kvledger_vllm import attach as module

    if getattr(module.attach, "is_test_hook", False):
        return
    attach = make(module.attach, Path(directory) / SOCKET)
    attach.is_test_hook = True  # type: ignore[attr-defined]
    module.attach = attach  # type: ignore[assignment]


def name_of(request_id: str) -> str:
    """A request id as far as the ledger keeps it."""
    return f"{request_id[:40]}|{request_id[-16:]}"


class Tally:
    """What vLLM counts only in passing, summed up from its requests and its statistics; none of the instrument's."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler, self._manager = scheduler, scheduler.kv_cache_manager
        self._seen: dict[str, Any] = {}
        self._peaks: dict[str, int] = {}
        self._queried = self._hit = 0
        self._looked_at: set[str] = set()
        make_stats = scheduler.kv_cache_manager.make_prefix_cache_stats

        def make_prefix_cache_stats() -> Any:
            stats = make_stats()
            if stats is not None:
                self._queried, self._hit = self._queried + stats.queries, self._hit + stats.hits
            return stats

        scheduler.kv_cache_manager.make_prefix_cache_stats = make_prefix_cache_stats
        self._abort_states: Counter[str] = Counter()
        finish_requests = scheduler.finish_requests

        def noting_finish_requests(request_ids: Any, *args: Any, **kwargs: Any) -> Any:
            ids = [request_ids] if isinstance(request_ids, str) else list(request_ids or ())
            self._abort_states.update(self._state_at_abort(request_id) for request_id in ids)
            return finish_requests(ids if request_ids is not None else None, *args, **kwargs)

        scheduler.finish_requests = noting_finish_requests

    def _state_at_abort(self, request_id: str) -> str:
        request = self._scheduler.requests.get(request_id)
        if request is None or request.is_finished():
            return "just finished"
        if request.status.name != "RUNNING":
            return "waiting"
        return "decoding" if request.num_output_tokens else "prefilling"

    def note(self, is_schedule: bool) -> None:
        """One publication has passed."""
        requests = self._scheduler.requests
        self._seen.update(requests)
        groups = self._manager.coordinator.single_type_managers
        for request_id in requests:
            held = sum(not block.is_null for group in groups for block in group.req_to_blocks.get(request_id, ()))
            self._peaks[request_id] = max(held, self._peaks.get(request_id, 0))
        if is_schedule:
            self._looked_at = set(requests)

    def document(self) -> dict[str, Any]:
        """All counts of this moment."""
        scheduler = self._scheduler
        truth = truth_of(scheduler)
        pending = getattr(self._manager, "prefix_cache_stats", None)
        seen = self._seen.values()
        over = [request for request_id, request in self._seen.items() if request_id not in scheduler.requests]
        ended = [request for request in seen if request.is_finished()]
        return {
            **{name: truth[name] for name in ("free", "cached", "active", "logical", "running", "waiting")},
            "shared": sum(times > 1 for times in self._named().values()),
            "references": {str(block): count for block, count in truth["references"].items()},
            "pinned": len({block.block_id for _, blocks in scheduler.deferred_frees for block in blocks}),
            "deferred": sum(r.request_id in self._looked_at for r in scheduler.deferred_waiting),
            "requests": {name_of(i): self._row(i, r) for i, r in scheduler.requests.items()},
            "preemptions": sum(request.num_preemptions for request in seen),
            "prefix_queried": self._queried + (pending.queries if pending else 0),
            "prefix_hit": self._hit + (pending.hits if pending else 0),
            "prompt_tokens": sum(request.num_prompt_tokens for request in seen),
            "generation_tokens": sum(request.num_output_tokens for request in seen),
            "finished": dict(Counter(_REASONS[request.status.name] for request in over)),
            "abort_states": dict(self._abort_states),
            "aborted": sum(request.status.name == "FINISHED_ABORTED" for request in ended),
        }

    def _row(self, request_id: str, request: Any) -> dict[str, Any]:
        table, named = self._table(request_id), self._named()
        status = request.status.name
        return {
            "blocks": len(table),
            "shared": sum(named[block] > 1 for block in table),
            "peak": self._peaks.get(request_id, 0),
            "state": "finishing" if request.is_finished() else {"RUNNING": "running", "PREEMPTED": "preempted"}.get(
                status, "waiting"
            ),
            "computed": request.num_computed_tokens if status == "RUNNING" else None,
            "output": request.num_output_tokens,
            "preemptions": request.num_preemptions,
            "prompt": request.num_prompt_tokens,
        }  # fmt: skip

    def _named(self) -> Counter[int]:
        """Block -> how many tables name it. A pin is no table, so that this is not the reference count."""
        return Counter(block for request_id in self._scheduler.requests for block in self._table(request_id))

    def _table(self, request_id: str) -> list[int]:
        (group,) = self._manager.coordinator.single_type_managers
        return [block.block_id for block in group.req_to_blocks.get(request_id, ()) if not block.is_null]


class LateReleases:
    """Every other ended request keeps its blocks for a few steps, as with a connector: vLLM's own way of doing so."""

    def __init__(self, scheduler: Any) -> None:
        self.on = False
        self._held: deque[tuple[int, Any]] = deque()
        self._steps = self._ended = 0
        finished, make_stats = scheduler._connector_finished, scheduler.make_stats

        def connector_finished(request: Any) -> Any:
            self._ended += 1
            if not self.on or self._ended % 2:
                return finished(request)
            self._held.append((self._steps + 5, request))
            return True, None

        def releasing_make_stats(*args: Any, **kwargs: Any) -> Any:
            self._steps += 1
            while self._held and (self._held[0][0] < self._steps or not self.on):
                scheduler._free_blocks(self._held.popleft()[1])
            return make_stats(*args, **kwargs)

        scheduler._connector_finished, scheduler.make_stats = connector_finished, releasing_make_stats


class Hold:
    """The hook in one scheduler. The first hold is when the test asks for one."""

    def __init__(self, path: Path, scheduler: Any, instrument: Any) -> None:
        self._scheduler, self._instrument = scheduler, instrument
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(PATIENCE_SECONDS)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("r")
        self._left = -1
        self._deferral = Deferral(scheduler)
        self._tally, self._defects, self._late = Tally(scheduler), Defects(scheduler), LateReleases(scheduler)
        self._publish: Callable[..., None] = instrument.tap.publish

    def put_in(self) -> None:
        """Come after every publication."""
        self._instrument.tap.publish = self.publish

    def _applied(self) -> int:
        """The number of the last publication, once the mirror has applied it."""
        if not self._instrument.await_applied(PATIENCE_SECONDS):
            raise AssertionError("the mirror does not apply what it is sent")
        return int(self._instrument.ledger.control[CONTROL_INDEX["published_seq"]])

    def publish(self, kind: Any, *args: Any) -> None:
        """A publication, and then maybe a hold."""
        self._publish(kind, *args)
        self._tally.note(kind == SCHEDULE)
        if kind == SCHEDULE:
            self._deferral.scheduled(args[2])
        elif kind == UPDATE:
            self._deferral.processed(args[2])
        if self._socket is None:
            return
        self._left -= 1
        if self._left == 0 or self._defects.done or select.select([self._socket], [], [], 0)[0]:
            try:
                self._hold()
            except (OSError, ValueError):
                self._socket = None
                self._let_go()

    def _hold(self) -> None:
        while True:
            self._say({"seq": self._applied(), "done": self._defects.take(), **self._tally.document()})
            command = json.loads(self._lines.readline())
            while "hold" in command:
                command = json.loads(self._lines.readline())
            if "raise" in command:
                raise Planted(command["raise"])
            if "inject" in command:
                self._defects.inject(command["inject"], command["seed"])
            if "repair" in command:
                self._defects.repair(command["repair"])
            if "defer_frees" in command:
                self._deferral.switch(bool(command["defer_frees"]))
            if "release_late" in command:
                self._late.on = bool(command["release_late"])
            if "publish" in command:
                now = time.monotonic_ns()
                self._publish(OTHER, now, now)
            if "go" in command:
                self._left = int(command["go"])
                if self._left >= FREE:
                    self._let_go()
                return

    def _let_go(self) -> None:
        """vLLM is as it would be without a hook, whatever the test had switched on."""
        self._deferral.switch(False)
        self._late.on = False

    def _say(self, document: dict[str, Any]) -> None:
        if self._socket is None:
            raise AssertionError("held without a socket")
        self._socket.sendall(json.dumps(document).encode() + b"\n")
