"""The test's end of the debug hook: a socket on which an engine core that is held says what it holds, and obeys."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from tests.vllm.debug_hook import SOCKET, VARIABLE
from tests.vllm.toggle import Pace

ROOT = Path(__file__).parents[2]
_METADATA = "Metadata-Version: 2.1\nName: kvledger-test-hook\nVersion: 0\n"
HOLD, TOGGLE = "tests.vllm.debug_hook:register", "tests.vllm.toggle:register"
"""What a conductor can have at the other end."""


class Conductor:
    """Owns the socket and the files that make the hook a plugin. One engine core connects to it."""

    def __init__(self, patience_seconds: float = 300.0, *, hook: str = HOLD) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="kvledger-hook-"))
        metadata = self.directory / "kvledger_test_hook-0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(_METADATA)
        (metadata / "entry_points.txt").write_text(f"[vllm.general_plugins]\nkvledger_test_hook = {hook}\n")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.directory / SOCKET))
        self._listener.listen(1)
        self._listener.settimeout(patience_seconds)
        self._patience = patience_seconds
        self._peer: socket.socket | None = None
        self._lines: TextIO | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        """What makes a server load the hook."""
        paths = [str(self.directory), str(ROOT / "engine"), str(ROOT / "agent"), str(ROOT)]
        return {VARIABLE: str(self.directory), "PYTHONPATH": os.pathsep.join(paths)}

    def await_engine(self) -> None:
        """The engine core is connected. Raises `TimeoutError`."""
        self._peer, _ = self._listener.accept()
        self._peer.settimeout(self._patience)
        self._lines = self._peer.makefile("r")

    def tell(self, **command: Any) -> None:
        """Say something to the engine core, held or not: `hold=True` makes it hold after its next publication."""
        if self._peer is None:
            self.await_engine()
        assert self._peer is not None
        self._peer.sendall(json.dumps(command).encode() + b"\n")

    def held(self) -> dict[str, Any]:
        """What the engine core holds, once it is held. Raises `TimeoutError`, `EOFError` if it is gone."""
        if self._lines is None:
            self.await_engine()
        assert self._lines is not None
        line = self._lines.readline()
        if not line:
            raise EOFError("the engine core is gone")
        document: dict[str, Any] = json.loads(line)
        return document

    def windows(self, count: int, pace: Pace) -> list[dict[str, Any]]:
        """With a `TOGGLE`: so many `toggle.Window`s of a server under load, as dicts. Returns once they are over.

        Raises `RuntimeError` where the load ends before, or the instrument switches itself off.
        """
        self.tell(windows=count, pace=asdict(pace))
        answer = self.held()
        if "error" in answer:
            raise RuntimeError(answer["error"])
        measured: list[dict[str, Any]] = answer["windows"]
        return measured

    def close(self) -> None:
        """Let the engine core go for good. Idempotent."""
        for part in (self._lines, self._peer, self._listener):
            if part is not None:
                part.close()
        shutil.rmtree(self.directory, ignore_errors=True)
