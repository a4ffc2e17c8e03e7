"""One completion's stream as it is read: server-sent events to token times, usage and the way it ended. No I/O."""

from __future__ import annotations

import json
from itertools import pairwise

from kvledger_agent.load.outcome import Ending, ending_of_finish, ending_of_stream_error, failed

MAX_EVENT_BYTES = 1 << 20
DONE = b"[DONE]"


class CompletionStream:
    """Fed with bytes as they come; `ending` and `ended_seconds` are set as soon as the end is known.

    Never raises for what a peer sent. All times are the caller's clock, in seconds.
    """

    def __init__(self) -> None:
        """An unread stream: no token, no ending."""
        self.ending: Ending | None = None
        self.ended_seconds: float | None = None
        self.tokens = 0
        self.token_times: list[float] = []
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self._pending = b""
        self._finish_reason: str | None = None

    def feed(self, data: bytes, now_seconds: float) -> None:
        """Take what was read at `now_seconds`; tokens in it get that time."""
        *lines, self._pending = (self._pending + data).split(b"\n")
        if len(self._pending) > MAX_EVENT_BYTES:
            self.ending = failed("event_too_long")
        for line in lines:
            if self.ending is None and line.startswith(b"data:"):
                self._take(line[5:].strip(), now_seconds)
        if self.ending is not None and self.ended_seconds is None:
            self.ended_seconds = now_seconds

    def close(self) -> Ending:
        """The ending, now that nothing more will come."""
        if self.ending is None:
            self.ending = ending_of_finish(self._finish_reason)
        return self.ending

    def _take(self, payload: bytes, now_seconds: float) -> None:
        if payload == DONE:
            self.ending = ending_of_finish(self._finish_reason or "stop")
            return
        try:
            event = json.loads(payload)
            if "error" in event:
                self.ending = ending_of_stream_error(event["error"])
                return
            self._take_usage(event.get("usage"))
            for choice in event.get("choices") or ():
                self._take_choice(choice, now_seconds)
        except (ValueError, TypeError, AttributeError):
            self.ending = failed("bad_stream")

    def _take_usage(self, usage: dict[str, object] | None) -> None:
        if usage is None:
            return
        prompt_tokens, output_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
        self.prompt_tokens = prompt_tokens if isinstance(prompt_tokens, int) else self.prompt_tokens
        self.output_tokens = output_tokens if isinstance(output_tokens, int) else self.output_tokens

    def _take_choice(self, choice: dict[str, object], now_seconds: float) -> None:
        finish_reason = choice.get("finish_reason")
        if isinstance(finish_reason, str):
            self._finish_reason = finish_reason
        token_ids = choice.get("token_ids")
        # A token may have no text yet (half a UTF-8 character); only the closing chunk is allowed to carry none.
        count = (
            len(token_ids) if isinstance(token_ids, list) else int(bool(choice.get("text")) or finish_reason is None)
        )
        if count:
            self.tokens += count
            self.token_times.extend([now_seconds] * count)


def gaps_seconds(times: list[float]) -> tuple[float, ...]:
    """Time between successive tokens, in seconds."""
    return tuple(later - earlier for earlier, later in pairwise(times))
