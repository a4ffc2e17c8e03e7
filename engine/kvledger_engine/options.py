"""What `kvledger engine` can be told: its arguments, and the options they become for the core. Starts nothing."""

from __future__ import annotations

import argparse
import math
import os

import msgspec

from kvledger_engine.config import EngineConfig
from kvledger_engine.errors import BadConfig
from kvledger_engine.faults import FaultKind
from kvledger_engine.steptime import StepTime

DIRECTORY_VARIABLE = "KVLEDGER_DIR"
DEFAULT_DIRECTORY = "/dev/shm/kvledger"
DEFAULTS = EngineConfig()


class CoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the command tells the core, as JSON on its standard input."""

    config: EngineConfig
    directory: str
    allow_disk: bool = False
    step_time: str = ""
    fault: str | None = None
    fault_after: int = 0
    drain_timeout_seconds: float = 30.0


def core_options(args: argparse.Namespace) -> CoreOptions:
    """What the core is told. Raises `BadConfig` or `BadStepTime` before anything is started."""
    StepTime.parse(args.step_time)
    if not 0 <= args.drain_timeout < math.inf:
        raise BadConfig(f"drain_timeout={args.drain_timeout}: use a finite number of seconds, 0 or more")
    config = EngineConfig(
        engine=args.name,
        model=args.model,
        rank=args.rank,
        capacity_blocks=args.blocks,
        block_size_tokens=args.block_size,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_model_len_tokens=args.max_model_len,
        max_waiting=args.max_waiting,
        admission_watermark_blocks=args.watermark,
        prefix_caching=args.prefix_caching,
        chunked_prefill=args.chunked_prefill,
        seed=args.seed,
    )
    return CoreOptions(
        config=config,
        directory=args.directory,
        allow_disk=args.allow_disk,
        step_time=args.step_time,
        fault=args.fault,
        fault_after=args.fault_after,
        drain_timeout_seconds=args.drain_timeout,
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add every argument of `kvledger engine`; sizes default to those of `EngineConfig`."""
    _add_identity(parser)
    _add_sizes(parser)
    _add_behaviour(parser)


def _add_identity(parser: argparse.ArgumentParser) -> None:
    directory = os.environ.get(DIRECTORY_VARIABLE) or DEFAULT_DIRECTORY
    parser.add_argument(
        "--directory",
        default=directory,
        metavar="DIR",
        help=f"where the ledger lies, on tmpfs (default: ${DIRECTORY_VARIABLE}, else {DEFAULT_DIRECTORY})",
    )
    parser.add_argument("--allow-disk", action="store_true", help="accept a directory that is not on tmpfs")
    parser.add_argument("--name", default=DEFAULTS.engine, help="name of this engine (default: %(default)s)")
    parser.add_argument(
        "--model", default=DEFAULTS.model, help="name under which the model is served (default: %(default)s)"
    )
    parser.add_argument("--rank", type=int, default=DEFAULTS.rank, help="rank of this core (default: %(default)s)")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s, this machine only)"
    )
    parser.add_argument("--port", type=int, default=8000, help="port to listen on; 0 = any (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the ready line as one JSON object")


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    def number(flag: str, default: int, text: str) -> None:
        parser.add_argument(flag, type=int, default=default, metavar="N", help=f"{text} (default: %(default)s)")

    number("--blocks", DEFAULTS.capacity_blocks, "blocks in the pool")
    number("--block-size", DEFAULTS.block_size_tokens, "tokens in a block")
    number("--max-num-seqs", DEFAULTS.max_num_seqs, "sequences in one step at most")
    number("--max-num-batched-tokens", DEFAULTS.max_num_batched_tokens, "tokens computed in one step at most")
    number("--max-model-len", DEFAULTS.max_model_len_tokens, "tokens of prompt and output together at most")
    number("--max-waiting", DEFAULTS.max_waiting, "requests waiting at most; more are refused as queue_full")
    number("--watermark", DEFAULTS.admission_watermark_blocks, "blocks kept free when requests are admitted")
    number("--seed", DEFAULTS.seed, "seed of everything the engine draws")


def _add_behaviour(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-prefix-caching",
        dest="prefix_caching",
        action="store_false",
        help="never share the blocks of equal prefixes",
    )
    parser.add_argument(
        "--no-chunked-prefill", dest="chunked_prefill", action="store_false", help="compute every prompt in one step"
    )
    parser.add_argument(
        "--step-time",
        default="",
        metavar="SPEC",
        help="make steps take time, as base=2ms,token=20us,seq=50us (default: none)",
    )
    parser.add_argument("--fault", choices=[kind.value for kind in FaultKind], help="let one defect happen, for drills")
    parser.add_argument(
        "--fault-after",
        type=int,
        default=0,
        metavar="N",
        help="opportunities to pass before the defect (default: %(default)s)",
    )
    parser.add_argument(
        "--drain-timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="cancel what still runs so long after SIGTERM; a second SIGTERM cancels at once (default: %(default)s)",
    )
