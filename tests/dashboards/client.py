"""A client of an engine in a thread of its own: sends one streaming request and reads it, or hangs up in the middle."""

from __future__ import annotations

import json
import threading
import urllib.request

PATIENCE_SECONDS = 120


def send(
    url: str, *, prompt_tokens: int, tokens: int, events_read: int | None = None, first_token: int = 1, n: int = 1
) -> None:
    """Send it and come back at once; the thread reads `events_read` events, then hangs up, or reads to the end.

    Another `first_token`, below 57, makes a prompt of which nothing is cached yet; `n` sequences share the prompt.
    """
    body = {
        "model": "cell",
        "prompt": [first_token + n % 200 for n in range(prompt_tokens)],
        "max_tokens": tokens,
        "stream": True,
        "n": n,
    }
    request = urllib.request.Request(
        f"{url}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "X-Tenant": "acme"},
    )
    threading.Thread(target=_read, args=(request, events_read), daemon=True, name=f"client of {url}").start()


def _read(request: urllib.request.Request, events_read: int | None) -> None:
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            for lines, _ in enumerate(answer):
                if events_read is not None and lines >= 2 * events_read:  # an event and the empty line after it
                    return
    except OSError:
        return  # the engine was killed or stopped: that is the scenario
