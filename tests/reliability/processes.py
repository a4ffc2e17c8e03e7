"""Real processes of the project, as a drill needs them: started, asked over HTTP, killed, started again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

READY_SECONDS = 60.0


class AgentProcess:
    """`kvledger agent` on a directory, on a port of its own at every start: the last one's may be somebody else's.

    `arguments` are further ones of the command.
    """

    def __init__(self, directory: Path, *arguments: str) -> None:
        self._directory, self._arguments, self.url = directory, arguments, ""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until its first sample is served."""
        command = ["agent", "--json", "--directory", str(self._directory), "--port", "0", *self._arguments]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvledger_agent", *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        self.url = str(json.loads(self._process.stdout.readline())["url"])
        deadline = time.monotonic() + READY_SECONDS
        while self._get("/readyz") is None:
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise TimeoutError(f"the agent was not ready within {READY_SECONDS} s")
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL, no chance to tidy up."""
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def page(self) -> str | None:
        """The metrics page, None when it is refused (503) or nobody answers."""
        return self._get("/metrics")

    def _get(self, path: str) -> str | None:
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as refused:
            refused.close()
            return None
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None

    def __enter__(self) -> AgentProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.communicate(timeout=READY_SECONDS)


SMALL_CELLS = (
    "--model cell --blocks 160 --block-size 8 --max-num-seqs 16 --max-num-batched-tokens 128 --max-model-len 640 "
    "--step-time base=15ms,token=20us,seq=300us"
)


class EngineProcess:
    """`kvledger engine` with these flags; by default the cell model, a small pool and steps of about 20 ms."""

    def __init__(self, directory: Path, flags: str = SMALL_CELLS) -> None:
        self._directory, self._flags = directory, flags
        self.url, self.core_pid = "", 0

    def __enter__(self) -> EngineProcess:
        command = ["engine", "--json", "--port", "0", "--directory", str(self._directory), *self._flags.split()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvledger_agent", *command],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        ready = json.loads(self._process.stdout.readline())
        self.url, self.core_pid = str(ready["url"]), int(ready["core_pid"])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.communicate(timeout=READY_SECONDS)


class LoadProcess:
    """`kvledger load --profile storm` with these flags; waited for at the end of the block."""

    def __init__(self, url: str, *, seed: int, flags: str) -> None:
        command = ["load", "--json", "--url", url, "--seed", str(seed), "--profile", "storm", *flags.split()]
        self._command = [sys.executable, "-m", "kvledger_agent", *command]
        self.report: dict[str, Any] = {}
        """What it says at its end; known after the block."""

    def __enter__(self) -> LoadProcess:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return self

    @property
    def running(self) -> bool:
        """Whether it has not come to its end."""
        return self._process.poll() is None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        out, _ = self._process.communicate(timeout=60)
        self.report = json.loads(out) if out else {}
