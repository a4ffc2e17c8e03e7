"""Where the public request traces lie that rows replay. They are data of others and no part of this repository."""

from __future__ import annotations

import os
from pathlib import Path

from bench.errors import NotHere

VARIABLE = "KVLEDGER_TRACES"
BESIDE = Path(__file__).parents[2] / "shared" / "traces"
MOONCAKE, AZURE = "conversation_trace.jsonl", "azure_conv.csv"


def trace(name: str) -> Path:
    """The path of a trace. Raises `NotHere` where there is none."""
    directory = Path(os.environ.get(VARIABLE) or BESIDE)
    path = directory / name
    if not path.is_file():
        raise NotHere(f"there is no {name} in ../shared/traces; get the public trace and name its folder in {VARIABLE}")
    return path
