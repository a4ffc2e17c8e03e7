"""Tokens as text and as server-sent events. Builds bytes; never does I/O.

A stream's chunks differ in a few bytes only, so everything around them is built once per request and sequence.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from kvledger_engine.messages import Finished
from kvledger_engine.wire import ApiError

DONE = b"data: [DONE]\n\n"
BYTE_TOKENS = 256


def text_of(token: int) -> str:
    """A token as text: the character of its number, or its number in angle brackets beyond the 256 byte tokens."""
    return chr(token) if token < BYTE_TOKENS else f"<{token}>"


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


_TEXTS = tuple(_json(text_of(token)) for token in range(BYTE_TOKENS))


def _json_text(token: int) -> bytes:
    return _TEXTS[token] if token < BYTE_TOKENS else _json(text_of(token))


class ChunkWriter:
    """Writes the events of one streamed completion of `sequences` sequences."""

    def __init__(self, *, request_id: str, created: int, model: str, sequences: int, include_usage: bool) -> None:
        head = _json({"id": request_id, "object": "text_completion", "created": created, "model": model})[:-1]
        self._head = b"data: " + head + b","
        self._before = [self._head + b'"choices":[{"index":%d,"text":' % index for index in range(sequences)]
        # With include_usage every chunk carries the field, and all but the last one carry null (OpenAI's rule).
        usage = b',"usage":null' if include_usage else b""
        self._after = b',"logprobs":null,"finish_reason":null}]' + usage + b"}\n\n"
        self._finish = b'"","logprobs":null,"finish_reason":"%b"}]' + usage + b"}\n\n"

    def token(self, index: int, token: int) -> bytes:
        """One token of sequence `index`."""
        return self._before[index] + _json_text(token) + self._after

    def finish(self, index: int, reason: str) -> bytes:
        """The end of sequence `index`."""
        return self._before[index] + self._finish % reason.encode()

    def usage(self, finished: Sequence[Finished]) -> bytes:
        """The last chunk of a stream with `include_usage`."""
        return self._head + b'"choices":[],"usage":' + _json(usage_of(finished)) + b"}\n\n"

    @staticmethod
    def error(error: ApiError) -> bytes:
        """An error after the headers are gone."""
        return b"data: " + error.body + b"\n\n"


def usage_of(finished: Sequence[Finished]) -> dict[str, object]:
    """OpenAI's `usage` over all sequences of one request: the prompt counts once."""
    prompt_tokens = max(end.prompt_tokens for end in finished)
    completion_tokens = sum(end.output_tokens for end in finished)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": min(end.hit_tokens for end in finished)},
    }
