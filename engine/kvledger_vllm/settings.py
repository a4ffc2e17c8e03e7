"""What the environment says of the instrument: where its ledger lies, under which name. Reads nothing else."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DIRECTORY = "KVLEDGER_DIR"
ENGINE = "KVLEDGER_ENGINE"
ALLOW_DISK = "KVLEDGER_ALLOW_DISK"
MAX_REQUESTS = "KVLEDGER_MAX_REQUESTS"
MOST_REQUESTS = 1 << 20
logger = logging.getLogger("vllm.kvledger")
_YES = ("1", "true", "yes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`max_requests` 0 means: by the scheduler's limits."""

    directory: Path
    engine: str = "vllm"
    allow_disk: bool = False
    max_requests: int = 0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings | None:
        """None where no directory is named. A number that is none counts as not given, and is warned of."""
        values = os.environ if environment is None else environment
        directory = values.get(DIRECTORY, "")
        if not directory:
            return None
        return cls(
            directory=Path(directory),
            engine=values.get(ENGINE) or "vllm",
            allow_disk=values.get(ALLOW_DISK, "").lower() in _YES,
            max_requests=_number(values.get(MAX_REQUESTS, "")),
        )


def _number(text: str) -> int:
    if not text:
        return 0
    try:
        number = int(float(text))
    except (ValueError, OverflowError):
        number = -1
    if number < 0:
        logger.warning("%s=%r is no number of requests and is ignored: use a whole number", MAX_REQUESTS, text)
    return min(max(0, number), MOST_REQUESTS)
