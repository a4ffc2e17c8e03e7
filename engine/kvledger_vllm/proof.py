"""The rolling statement of running requests: what a few say of themselves, a few at a time, all of them in turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REST_NS = 100_000_000
PROVED = 4


class Proof:
    """Goes round the running requests of a scheduler, `PROVED` in a schedule, with a rest of `rest_ns` behind each.

    `tables` are vLLM's block tables by request id, None where they are not only lengthened.
    """

    def __init__(self, scheduler: Any, tables: Mapping[str, list[Any]] | None) -> None:
        self._scheduler, self._tables, self._next, self._due_ns = scheduler, tables, 0, 0
        self.rest_ns = REST_NS

    def due(self, now_ns: int) -> list[Any] | None:
        """Of the next few id, tokens computed, tokens generated, last block (-1: not told); None before their time."""
        if now_ns < self._due_ns:
            return None
        self._due_ns = now_ns + self.rest_ns
        running, tables, at = self._scheduler.running, self._tables, self._next
        if at >= len(running):
            at = 0
        self._next = at + PROVED
        proof: list[Any] = []
        for request in running[at : at + PROVED]:
            request_id = request.request_id
            table = tables.get(request_id) if tables is not None else None
            last = table[-1].block_id - 1 if table else -1
            proof += (request_id, request.num_computed_tokens, request.num_output_tokens, last)
        return proof
