"""The order of stores: what is stored before `settle` is visible to other processes before what is stored after it.

A compiler may reorder the stores of a loop; the ledger's contract is that a stamp comes before the change.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic, overload


@intrinsic
def _fence(typing_context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("release")
        return context.get_dummy_value()

    return types.void(), generate


def settle() -> None:
    """Stores before this come before stores after it. Interpreted code keeps its order anyway."""


@overload(settle, jit_options={"forceinline": True})
def _settle() -> Any:
    def settled() -> None:
        _fence()

    return settled
