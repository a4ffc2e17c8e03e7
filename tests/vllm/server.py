"""A real vLLM OpenAI server over the tiny model: started with a ledger directory, stopped by its process id."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.health import await_health
from kvledger.segment import SUFFIX

MODEL = "tiny"
START_SECONDS, STOP_SECONDS = 900.0, 120.0
ENVIRONMENT = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    # By default five seconds, as the client's: a request could meet a connection that had just been closed.
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "600",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
"""What every server of vLLM's is started with here."""


class ServerDied(Exception):
    """The server ended, or did not answer in time; says the end of its log."""


@dataclass(frozen=True, slots=True)
class VllmServer:
    """A server that answers. `url` has no path; `log` is its standard output and error."""

    url: str
    directory: Path
    log: Path
    process: subprocess.Popen[bytes]

    def ledger(self) -> Path:
        """The one ledger of its engine core."""
        (path,) = self.directory.glob(f"*{SUFFIX}")
        return path


@contextmanager
def vllm_server(
    model: Path,
    directory: Path,
    log: Path,
    *,
    blocks: int = 257,
    block_size: int = 32,
    arguments: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[VllmServer]:
    """Start a server whose pool has `blocks` blocks, the null block included; stop it on the way out."""
    port = free_port()
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(model), "--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port),
        "--enforce-eager", "--block-size", str(block_size), "--num-gpu-blocks-override", str(blocks), *arguments,
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment_with({"KVLEDGER_DIR": str(directory)} | dict(environment or {})),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        server = VllmServer(f"http://127.0.0.1:{port}", directory, log, process)
        try:
            _require_health(server)
            yield server
        finally:
            stop(server)


def environment_with(more: Mapping[str, str]) -> dict[str, str]:
    """What a process of vLLM's is started with. Compiled files make the second start several times as fast."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return inherited | ENVIRONMENT | dict(more)


def stop(server: VllmServer) -> int:
    """Ask the server to end, and see to it. Returns its exit code."""
    process = server.process
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)
    return process.returncode


def _require_health(server: VllmServer) -> None:
    if await_health(server.url, server.process, within_seconds=START_SECONDS):
        return
    if server.process.poll() is not None:
        raise ServerDied(f"exit code {server.process.returncode}:\n{_tail(server.log)}")
    raise ServerDied(f"no answer within {START_SECONDS:g} s:\n{_tail(server.log)}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-30:])


def free_port() -> int:
    """One on loopback that nobody uses now."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port
