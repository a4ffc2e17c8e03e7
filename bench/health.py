"""Waiting for a server of a child process to answer: `/health`, for as long as the process lives. Starts nothing."""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request

POLL_SECONDS, ANSWER_SECONDS = 0.5, 5.0


def await_health(url: str, process: subprocess.Popen[bytes], *, within_seconds: float) -> bool:
    """Whether the server at `url` answers in time; False at once when its process has ended."""
    deadline = time.monotonic() + within_seconds
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=ANSWER_SECONDS):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(POLL_SECONDS)
    return False
