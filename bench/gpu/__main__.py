"""`python -m bench.gpu`: the decode kernel on this machine's card, against its memory and against others.

Calls of all candidates are measured in turns. A figure is the median of windows with its 95 % interval. The share of
the card's bandwidth is taken against a plain copy on the same card in the same run, and is checked for sense: what a
kernel saw must be what the others saw. Exit status 1 without a card.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import triton

from bench.estimate import estimate
from bench.gpu.cases import CASES, Case, tensors
from bench.gpu.peers import Call, gathered_sdpa, vllm_unified
from kvledger_engine.kernels.decode import paged_decode, splits_of

WINDOWS, CALLS, WARM_CALLS = 20, 20, 5
COPY_BYTES = 1 << 30
BOUND = 2e-2


def main() -> int:
    """Measure every case and print one JSON document."""
    argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__).parse_args()
    if not torch.cuda.is_available():
        print("bench.gpu: torch sees no card; nothing was measured", file=sys.stderr)
        return 1
    device = torch.device("cuda")
    bandwidth = _copy_bandwidth(device)
    document = {
        "card": torch.cuda.get_device_name(device),
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "copy_bytes_per_second": bandwidth,
        "cases": [_measured(case, device, bandwidth) for case in CASES],
    }
    print(json.dumps(document, indent=2, allow_nan=False))
    return 0


def _copy_bandwidth(device: torch.device) -> float:
    """Bytes read and written per second by a plain copy that no cache holds."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = _seconds({"copy": lambda: target.copy_(source)})["copy"]
    return 2 * COPY_BYTES / estimate(seconds).value


def _measured(case: Case, device: torch.device, bandwidth: float) -> dict[str, Any]:
    given = tensors(case, device)
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    splits = splits_of(case.rows * case.layout.kv_heads, case.seen_tokens, multiprocessors)
    calls: dict[str, Call] = {
        "ours": lambda: paged_decode(given.query, given.cells, given.rows, splits=splits),
        "sdpa_on_gathered": gathered_sdpa(case, given),
    }
    if (theirs := vllm_unified(case, given)) is not None:
        calls["vllm"] = theirs
    seen = calls["ours"]().float()
    for name, call in calls.items():
        error = float((call().float() - seen).abs().max())
        if not error <= BOUND:
            raise SystemExit(f"bench.gpu: {name} differs from ours by {error} in {case.name}: nothing is measured")
    estimates = {name: estimate(windows) for name, windows in _seconds(calls).items()}
    ours = estimates["ours"].value
    return {
        "case": case.name,
        "splits": splits,
        "share_of_copy_bandwidth": case.read_bytes / ours / bandwidth,
        "seconds": {name: [e.value, e.low, e.high] for name, e in estimates.items()},
        "times_ours": {name: e.value / ours for name, e in estimates.items() if name != "ours"},
    }


def _seconds(calls: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Seconds of one call, by windows of several, taken in turns."""
    for call in calls.values():
        for _ in range(WARM_CALLS):
            call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(WINDOWS):
        for name, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(CALLS):
                call()
            end.record()
            torch.cuda.synchronize()
            found[name].append(begin.elapsed_time(end) / 1e3 / CALLS)
    return found


if __name__ == "__main__":
    sys.exit(main())
