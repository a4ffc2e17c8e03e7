"""Who gives way when the pool is short, and how its content comes back: pure choices. Releases nothing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvledger.views import F64, I64, U8, U64
from kvledger.words import PreemptionMode, RequestClass

PRIORITY: NDArray[np.int8] = np.zeros(len(RequestClass), np.int8)
"""Priority by request class; the higher one stays longer."""
PRIORITY[RequestClass.BATCH] = 0
PRIORITY[RequestClass.DEFAULT] = 1
PRIORITY[RequestClass.INTERACTIVE] = 2


def order_of_sacrifice(request_classes: U8, serials: U64, tenant_priorities: F64 | None = None) -> I64:
    """Indices, the first to give way first: lowest priority of tenant, then of class, then greatest serial.

    Serials differ, so the order is total and never changes: whoever comes last in it is not preempted, and gets done.
    """
    latest_first = np.argsort(serials)[::-1]
    order = latest_first[np.argsort(PRIORITY[request_classes[latest_first]], kind="stable")]
    if tenant_priorities is None:
        return order
    return order[np.argsort(tenant_priorities[order], kind="stable")]


def preemption_mode(*, saved_blocks: int, copied_blocks: int, free_blocks: int) -> PreemptionMode:
    """How the content of a sequence that gives way comes back.

    It is swapped if it has any, `saved_blocks`, and those of them that are in no host block yet, `copied_blocks`, fit
    into the `free_blocks` of the host pool: all of it or nothing.
    """
    fits = saved_blocks > 0 and copied_blocks <= free_blocks
    return PreemptionMode.SWAP if fits else PreemptionMode.RECOMPUTE
