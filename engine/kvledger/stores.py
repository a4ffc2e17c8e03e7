"""Arrays whose stores are counted, so that a drill can stop a writer at its n-th store. Never used in production."""

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
