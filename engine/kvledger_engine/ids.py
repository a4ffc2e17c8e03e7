"""Types of arrays that hold numbers of blocks, slots and tables."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
"""As kernels take them."""
Integers = NDArray[np.signedinteger[Any]]
"""As callers have them."""


def ids(numbers: Integers) -> Ids:
    """The same numbers as kernels take them: contiguous, 64 bits each; the array itself where it is like that."""
    found: Ids = np.ascontiguousarray(numbers, np.int64)
    return found
