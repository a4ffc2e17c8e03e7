"""The requests of one scheduled step, kept for as long as the same ones are scheduled again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger_vllm.requests import Ids

I32 = NDArray[np.int32]


@dataclass(slots=True)
class Scheduled:
    """In vLLM's order: ids, slots, their occupants' serials, vLLM's objects and the lists they keep their tokens in.

    `computed_sum` and `generated_sum` are the sums of what the ledger says of them, -1 for not known; `computed_first`
    is what it says of the first.
    `seatings` is the `Requests.seatings` at which the slots were last seen to have these occupants.
    """

    ids: list[str]
    slots: Ids
    serials: NDArray[np.uint64]
    requests: list[Any]
    outputs: list[Any]
    seatings: int
    computed_first: int = -1
    computed_sum: int = -1
    generated_sum: int = -1
    proved_ns: int = 0
    updates: int = 0


def nobody() -> Scheduled:
    """No step."""
    return Scheduled([], np.empty(0, np.intp), np.empty(0, np.uint64), [], [], -1)


def output_lists(requests: list[Any]) -> list[Any]:
    """What each request appends its tokens to, past vLLM's property where the list behind it is there."""
    if requests and hasattr(requests[0], "_output_token_ids"):
        return [request._output_token_ids for request in requests]
    return []
