"""HTTP servers over one checkpoint, ours and vLLM's: started, awaited, and stopped by their process ids."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.errors import BenchError
from bench.hashes import PYTHON_HASH_SEED
from bench.health import await_health
from bench.vllmenv import vllm_python
from kvledger_agent.up.child import Child

SERVED = "model"
BLOCK_TOKENS, MODEL_TOKENS = 32, 1024
READY_SECONDS, STOP_SECONDS = 900.0, 60.0
BOTH_CORES = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": str(os.cpu_count() or 1),
    "OMP_WAIT_POLICY": "PASSIVE",
}
"""What has vLLM compute on all cores. By itself it leaves one to its own HTTP process."""
_VLLM = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "PYTHONHASHSEED": PYTHON_HASH_SEED,
}
_NOT_INHERITED = ("KVLEDGER_DIR", "OMP_NUM_THREADS", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH")


@contextmanager
def our_server(checkpoint: Path, directory: Path, *, name: str, streams: int) -> Iterator[str]:
    """`kvledger engine` over a checkpoint; yields its address."""
    sizes = {
        "--blocks": streams * MODEL_TOKENS // BLOCK_TOKENS,
        "--block-size": BLOCK_TOKENS,
        "--max-num-seqs": streams,
        "--max-model-len": MODEL_TOKENS,
        "--port": 0,
    }
    flags = [str(part) for pair in sizes.items() for part in pair]
    names = ["--model", str(checkpoint), "--served-model-name", SERVED, "--name", name]
    engine = Child(
        "engine",
        ["engine", "--json", "--directory", str(directory / "ledgers"), *names, *flags],
        log=directory / f"{name}.log",
        environment={"PYTHONHASHSEED": PYTHON_HASH_SEED},
    )
    try:
        yield str(engine.first_line(READY_SECONDS)["url"])
    finally:
        engine.stop(STOP_SECONDS)


@contextmanager
def vllm_server(
    checkpoint: Path, directory: Path, *, name: str, streams: int, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """vLLM's server over a checkpoint, the plugin off; yields its address. Raises `NotHere` where there is no vLLM."""
    port, log = _free_port(), directory / f"{name}.log"
    blocks = streams * MODEL_TOKENS // BLOCK_TOKENS
    command = [
        str(vllm_python()), "-m", "vllm.entrypoints.openai.api_server", "--model", str(checkpoint),
        "--served-model-name", SERVED, "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32",
        "--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(blocks + 1),
        "--max-num-seqs", str(streams), "--max-model-len", str(MODEL_TOKENS), "--disable-uvicorn-access-log",
    ]  # fmt: skip
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=inherited | _VLLM | dict(environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _require_health(url, process, log)
        yield url
    finally:
        _stop(process)


def _require_health(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    if await_health(url, process, within_seconds=READY_SECONDS):
        return
    raise BenchError(f"vLLM's server did not come up: {' '.join(log.read_text(errors='replace').split()[-60:])}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port
