"""How a writer stores into its arrays: fast, or counted, so that a drill can stop it at its n-th store.

Arrays with a hook are never used in production.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Hook = Callable[[], None]


class HookedArray(np.ndarray[Any, Any]):
    """An ndarray view that calls a hook before every element store made through it or through a view of it."""

    hook: Hook | None = None

    def __array_finalize__(self, source: object) -> None:
        self.hook = getattr(source, "hook", None)

    def __setitem__(self, key: Any, value: Any) -> None:
        if self.hook is not None:
            self.hook()
        super().__setitem__(key, value)


def hooked(array: NDArray[Any], hook: Hook | None) -> NDArray[Any]:
    """`array` itself without a hook; with one, a view of the same memory that calls it before each store."""
    if hook is None:
        return array
    view = array.view(HookedArray)
    view.hook = hook
    return view


def words(array: NDArray[Any], hook: Hook | None) -> Any:
    """A 1-D array of whole words for fast access; the array itself where a hook must see its stores."""
    return array if hook is not None else array.data
