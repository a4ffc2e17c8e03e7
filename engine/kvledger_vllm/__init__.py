"""The instrument for vLLM: mirrors a scheduler's blocks, tables and requests into a ledger.

Inert unless KVLEDGER_DIR is set. Acts only in the process that makes a Scheduler, and never raises into vLLM.
"""

from __future__ import annotations

from kvledger_vllm.attach import watch_schedulers
from kvledger_vllm.settings import Settings


def register() -> None:
    """The entry point of group `vllm.general_plugins`: vLLM calls it in every process, maybe more than once."""
    settings = Settings.from_environment()
    if settings is not None:
        watch_schedulers(settings)
