"""Values as plain JSON data: words as their word, series as rows with named labels, unknown and NaN as null."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from kvledger.words import Word
from kvledger_agent.observation import Series


def plain(value: Any) -> Any:
    """Dataclasses, mappings, sequences, words and numbers as what `json.dumps(allow_nan=False)` takes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Word):
        return value.word
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def series_rows(series: Series | None, names: Iterable[str]) -> list[dict[str, Any]] | None:
    """A series as rows: one key per label name, and `value`. None stays None: the source does not report it."""
    if series is None:
        return None
    names = tuple(names)
    return [dict(zip(names, labels, strict=True)) | {"value": plain(value)} for labels, value in series.items()]
