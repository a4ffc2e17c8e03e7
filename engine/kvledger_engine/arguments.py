"""The arguments of `kvledger engine`, with what they default to. Adds them; reads none of them."""

from __future__ import annotations

import argparse
import os

from kvledger.words import PreemptionMode
from kvledger_engine import kveviction
from kvledger_engine.allocation import Allocation
from kvledger_engine.computes import CELL_MODEL, DEVICES, DTYPES, KV_FORMATS, ModelOptions
from kvledger_engine.config import EngineConfig
from kvledger_engine.evict import Eviction
from kvledger_engine.faults import FaultKind
from kvledger_engine.options import DRAIN_TIMEOUT_SECONDS

DIRECTORY_VARIABLE = "KVLEDGER_DIR"
DEFAULT_DIRECTORY = "/dev/shm/kvledger"
DEFAULTS = EngineConfig()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add every argument of `kvledger engine`; sizes default to those of `EngineConfig`."""
    _add_identity(parser)
    _add_model(parser)
    _add_sizes(parser)
    _add_policies(parser)
    _add_drills(parser)
    _add_timeouts(parser)
    kveviction.add_arguments(parser)


def _add_identity(parser: argparse.ArgumentParser) -> None:
    directory = os.environ.get(DIRECTORY_VARIABLE) or DEFAULT_DIRECTORY
    parser.add_argument(
        "--directory",
        default=directory,
        metavar="DIR",
        help=f"where the ledger lies, on tmpfs (default: ${DIRECTORY_VARIABLE}, else {DEFAULT_DIRECTORY})",
    )
    parser.add_argument("--allow-disk", action="store_true", help="accept a directory that is not on tmpfs")
    parser.add_argument(
        "--name",
        dest="engine",
        metavar="NAME",
        default=DEFAULTS.engine,
        help="name of this engine (default: %(default)s)",
    )
    parser.add_argument("--rank", type=int, default=DEFAULTS.rank, help="rank of this core (default: %(default)s)")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s, this machine only)"
    )
    parser.add_argument("--port", type=int, default=8000, help="port to listen on; 0 = any (default: %(default)s)")
    parser.add_argument(
        "--api-keys",
        metavar="FILE",
        help="ask clients for a key of this file, whose lines are a name and a key; the name is the tenant "
        "(default: no key is asked for)",
    )
    parser.add_argument("--json", action="store_true", help="print the ready line as one JSON object")


def _add_model(parser: argparse.ArgumentParser) -> None:
    default = ModelOptions()
    parser.add_argument(
        "--model",
        default=default.source,
        metavar="MODEL",
        help="directory of a Hugging Face checkpoint (Llama, Mistral, Qwen2, Qwen3), 'embedded' for a small one with "
        "seeded weights, 'embedded-windows' for one whose layers see a window in turn, "
        f"or '{CELL_MODEL}' for the numpy instrument without tensors (default: %(default)s)",
    )
    parser.add_argument(
        "--served-model-name", metavar="NAME", help="name the model is served under (default: that of --model)"
    )
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default=default.dtype,
        help="of the weights; auto = the checkpoint's on an accelerator, float32 on a CPU (default: %(default)s)",
    )
    parser.add_argument(
        "--device",
        choices=DEVICES,
        default=default.device,
        help="auto = cuda where there is one (default: %(default)s)",
    )
    parser.add_argument(
        "--kv-format",
        choices=KV_FORMATS,
        default=default.kv_format,
        help="of the cached keys and values; int8 and fp8 (e4m3) keep a scale beside each vector; auto = the dtype of "
        "the weights (default: %(default)s)",
    )


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    def number(flag: str, default: int, text: str, dest: str | None = None) -> None:
        what = f"{text} (default: %(default)s)"
        parser.add_argument(
            flag, type=int, default=default, metavar="N", help=what, dest=dest or flag[2:].replace("-", "_")
        )

    number("--blocks", DEFAULTS.capacity_blocks, "blocks in the pool", dest="capacity_blocks")
    number("--block-size", DEFAULTS.block_size_tokens, "tokens in a block")
    number("--max-num-seqs", DEFAULTS.max_num_seqs, "sequences in one step at most")
    number("--max-num-batched-tokens", DEFAULTS.max_num_batched_tokens, "tokens computed in one step at most")
    parser.add_argument(
        "--max-model-len",
        type=int,
        metavar="N",
        help=f"tokens of prompt and output together at most (default: {DEFAULTS.max_model_len_tokens}, or what the "
        "model can do)",
    )
    number("--max-waiting", DEFAULTS.max_waiting, "requests waiting at most; more are refused as queue_full")
    watermark = "blocks kept free when requests are admitted"
    number("--watermark", DEFAULTS.admission_watermark_blocks, watermark, dest="admission_watermark_blocks")
    parser.add_argument(
        "--tenants",
        metavar="FILE",
        help="TOML file of what each tenant may hold and how each class is treated, see docs/engine.md (default: no "
        "quotas, one queue for all)",
    )
    number("--seed", DEFAULTS.seed, "seed of everything the engine draws")


def _add_policies(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-prefix-caching",
        dest="prefix_caching",
        action="store_false",
        help="never share the blocks of equal prefixes",
    )
    parser.add_argument(
        "--eviction",
        choices=[policy.value for policy in Eviction],
        default=DEFAULTS.eviction,
        help="which cached blocks are recycled first: least recently used, least frequently used with age, or the "
        "deepest of their sequences (default: %(default)s)",
    )
    parser.add_argument(
        "--preemption",
        choices=PreemptionMode.words(),
        default=DEFAULTS.preemption,
        help="how what was preempted comes back: computed again, or from host memory (default: %(default)s)",
    )
    parser.add_argument(
        "--swap-blocks",
        type=int,
        default=DEFAULTS.swap_blocks,
        metavar="N",
        help="blocks of host memory for --preemption swap; what does not fit is computed again (default: %(default)s)",
    )
    parser.add_argument(
        "--allocation",
        choices=[kind.value for kind in Allocation],
        default=DEFAULTS.allocation,
        help="how blocks are placed; reserve and grow are baselines of contiguous runs, to see what paging buys "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--no-chunked-prefill", dest="chunked_prefill", action="store_false", help="compute every prompt in one step"
    )


def _add_drills(parser: argparse.ArgumentParser) -> None:
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


def _add_timeouts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--queue-timeout",
        type=float,
        metavar="SECONDS",
        help="refuse what has waited so long for its first block, as queue_timeout (default: never)",
    )
    parser.add_argument(
        "--run-timeout",
        type=float,
        metavar="SECONDS",
        help="end what has run for so long, as run_timeout (default: never)",
    )
    parser.add_argument(
        "--drain-timeout",
        type=float,
        default=DRAIN_TIMEOUT_SECONDS,
        metavar="SECONDS",
        help="cancel what still runs so long after SIGTERM; a second SIGTERM cancels at once (default: %(default)s)",
    )
