"""From windows to a number: the median (or another quantile), its confidence interval and its spread. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from bench.errors import BenchError

Windows = NDArray[np.float64]

RESAMPLES = 2000
CONFIDENCE = 0.95
FEWEST_WINDOWS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A quantile of measured windows, the median unless said otherwise.

    `low` and `high` bound its 95 % bootstrap confidence interval (percentile method, Efron 1979); `p10` and `p90` are
    the spread of the windows themselves.
    """

    value: float
    low: float
    high: float
    p10: float
    p90: float
    windows: int

    def document(self) -> dict[str, float]:
        """Its numbers by name, for JSON, rounded to four places."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


def estimate(windows: Windows | Sequence[float], *, quantile: float = 0.5) -> Estimate:
    """The quantile of the windows. Raises `BenchError` for fewer than three windows or one that is no number."""
    values = np.asarray(windows, np.float64)
    if values.ndim != 1 or len(values) < FEWEST_WINDOWS or not np.isfinite(values).all():
        raise BenchError(f"windows {values.tolist()!r:.200}: an estimate needs {FEWEST_WINDOWS} or more finite numbers")
    draws = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    resampled = np.quantile(values[draws], quantile, axis=1)
    low, high = np.quantile(resampled, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    value, p10, p90 = np.quantile(values, (quantile, 0.1, 0.9))
    return Estimate(
        value=float(value),
        low=min(float(low), float(value)),
        high=max(float(high), float(value)),
        p10=float(p10),
        p90=float(p90),
        windows=len(values),
    )
