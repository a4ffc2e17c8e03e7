"""An older vLLM's own scheduler, mirrored: run with that version's sources first on the path, in this environment.

`python -m tests.vllm.older MODEL DIRECTORY`: imports every module the plugin hooks, then makes random calls of the
scheduler and compares after each. Prints a line of JSON: the version, where its modules lie, and how many calls.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

HOOKED = (
    "vllm.v1.core.sched.scheduler", "vllm.v1.core.sched.async_scheduler", "vllm.v1.core.sched.output",
    "vllm.v1.core.block_pool", "vllm.v1.core.kv_cache_manager", "vllm.v1.core.kv_cache_coordinator",
    "vllm.v1.core.single_type_kv_cache_manager", "vllm.v1.core.kv_cache_utils", "vllm.v1.request",
    "vllm.v1.engine.core",
)  # fmt: skip
CALLS, SEED = 150, 21


def main(model: Path, directory: Path) -> None:
    """Everything above. Raises whatever goes wrong."""
    files = {name: str(importlib.import_module(name).__file__) for name in HOOKED}
    import vllm

    from tests.vllm.mirrored import Work, mirrored

    with mirrored(model, directory, blocks=65, seed=SEED, asynchronous=False) as mirror:
        work = Work(mirror, SEED)
        mirror.check("start")
        for number in range(CALLS):
            mirror.check(f"{number}: {work.call()}")
        mirror.bare.drain()
        mirror.bare.abort(*mirror.scheduler.requests)
        mirror.check("all aborted")
        stats = mirror.reader.sample().stats
        print(
            json.dumps(
                {
                    "version": vllm.__version__,
                    "files": files,
                    "calls": CALLS,
                    "corrections": mirror.corrections(),
                    "generated": stats.counter("generation_tokens_total"),
                    "preemptions": stats.counter("preemptions_total", mode="recompute"),
                }
            )
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
