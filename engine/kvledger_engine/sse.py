"""The events of a streamed answer. Builds bytes; never does I/O, and knows no tokenizer.

A stream's chunks differ in a few bytes only, so everything around them is built once per request and sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvledger_engine.messages import Finished
from kvledger_engine.wire import ApiError

DONE = b"data: [DONE]\n\n"

_json = msgspec.json.encode


class ChunkWriter:
    """Writes the events of one streamed completion of `sequences` sequences; in the shape of chats where `chat`."""

    def __init__(
        self, *, request_id: str, created: int, model: str, sequences: int, include_usage: bool, chat: bool = False
    ) -> None:
        kind = "chat.completion.chunk" if chat else "text_completion"
        head = _json({"id": request_id, "object": kind, "created": created, "model": model})[:-1]
        field, close = (b'"delta":{"content":', b"}") if chat else (b'"text":', b"")
        self._head = b"data: " + head + b","
        self._choices = [self._head + b'"choices":[{"index":%d,' % index for index in range(sequences)]
        self._before = [choice + field for choice in self._choices]
        # With include_usage every chunk carries the field, and all but the last one carry null (OpenAI's rule).
        usage = b',"usage":null' if include_usage else b""
        self._scores = close + b',"logprobs":'
        self._rest = b',"finish_reason":null}]' + usage + b"}\n\n"
        self._after = self._scores + b"null" + self._rest
        self._finish = self._scores + b'null,"finish_reason":"%b"}]' + usage + b"}\n\n"

    def opening(self, index: int) -> bytes:
        """The first chunk of sequence `index` of a chat: who speaks."""
        return self._choices[index] + b'"delta":{"role":"assistant","content":""' + self._after

    def token(self, index: int, text: str, scores: Any = None) -> bytes:
        """What one token brought to the text of sequence `index`, with its scores where they are asked for."""
        if scores is None:
            return self._before[index] + _json(text) + self._after
        return self._before[index] + _json(text) + self._scores + _json(scores) + self._rest

    def finish(self, index: int, text: str, reason: str) -> bytes:
        """The end of sequence `index`, with the rest of its text."""
        return self._before[index] + _json(text) + self._finish % reason.encode()

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
