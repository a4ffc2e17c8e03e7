"""The options of an engine core, as the arguments of `kvledger engine` become them. Starts nothing."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import msgspec

from kvledger_engine.computes import ModelOptions, longest_context_tokens
from kvledger_engine.config import EngineConfig
from kvledger_engine.errors import BadConfig
from kvledger_engine.quotafile import read_quotas
from kvledger_engine.steptime import StepTime

DEFAULT_MODEL_LEN_TOKENS = EngineConfig().max_model_len_tokens
DRAIN_TIMEOUT_SECONDS = 30.0


class CoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the command tells the core, as JSON on its standard input."""

    config: EngineConfig
    model: ModelOptions
    directory: str
    allow_disk: bool = False
    step_time: str = ""
    fault: str | None = None
    fault_after: int = 0
    drain_timeout_seconds: float = DRAIN_TIMEOUT_SECONDS


def core_options(args: argparse.Namespace) -> CoreOptions:
    """What the core is told. Raises `BadConfig` or `BadCheckpoint` before anything is started."""
    StepTime.parse(args.step_time)
    model = ModelOptions(source=args.model, dtype=args.dtype, device=args.device, kv_format=args.kv_format)
    if not 0 <= args.drain_timeout < math.inf:
        raise BadConfig(f"drain_timeout={args.drain_timeout}: use a finite number of seconds, 0 or more")
    config = EngineConfig(
        engine=args.engine,
        model=args.served_model_name or model.name,
        rank=args.rank,
        capacity_blocks=args.capacity_blocks,
        block_size_tokens=args.block_size,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_model_len_tokens=_max_model_len(args.max_model_len, longest_context_tokens(model)),
        max_waiting=args.max_waiting,
        admission_watermark_blocks=args.admission_watermark_blocks,
        prefix_caching=args.prefix_caching,
        chunked_prefill=args.chunked_prefill,
        eviction=args.eviction,
        preemption=args.preemption,
        swap_blocks=args.swap_blocks,
        kv_eviction=args.kv_eviction,
        kv_window_tokens=args.kv_window_tokens,
        kv_sink_blocks=args.kv_sink_blocks,
        allocation=args.allocation,
        queue_timeout_seconds=args.queue_timeout,
        run_timeout_seconds=args.run_timeout,
        seed=args.seed,
        quotas=read_quotas(Path(args.tenants)) if args.tenants else None,
    )
    return CoreOptions(
        config=config,
        model=model,
        directory=args.directory,
        allow_disk=args.allow_disk,
        step_time=args.step_time,
        fault=args.fault,
        fault_after=args.fault_after,
        drain_timeout_seconds=args.drain_timeout,
    )


def _max_model_len(wanted: int | None, longest: int | None) -> int:
    """The context limit: what is asked for, else the default, where the model can go so far. Raises `BadConfig`."""
    if wanted is None:
        return DEFAULT_MODEL_LEN_TOKENS if longest is None else min(longest, DEFAULT_MODEL_LEN_TOKENS)
    if longest is not None and wanted > longest:
        raise BadConfig(f"max_model_len={wanted}: the model has {longest:,} positions; use at most that")
    return wanted
