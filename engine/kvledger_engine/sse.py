"""The events of a streamed completion. Builds bytes; never does I/O, and knows no tokenizer.

A stream's chunks differ in a few bytes only, so everything around them is built once per request and sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvledger_engine.messages import Finished
from kvledger_engine.wire import ApiError

DONE = b"data: [DONE]\n\n"

_json = msgspec.json.encode


class ChunkWriter:
    """Writes the events of one streamed completion of `sequences` sequences."""

    def __init__(self, *, request_id: str, created: int, model: str, sequences: int, include_usage: bool) -> None:
        head = _json({"id": request_id, "object": "text_completion", "created": created, "model": model})[:-1]
        self._head = b"data: " + head + b","
        self._before = [self._head + b'"choices":[{"index":%d,"text":' % index for index in range(sequences)]
        # With include_usage every chunk carries the field, and all but the last one carry null (OpenAI's rule).
        usage = b',"usage":null' if include_usage else b""
        self._after = b',"logprobs":null,"finish_reason":null}]' + usage + b"}\n\n"
        self._finish = b',"logprobs":null,"finish_reason":"%b"}]' + usage + b"}\n\n"

    def token(self, index: int, text: str) -> bytes:
        """What one token brought to the text of sequence `index`."""
        return self._before[index] + _json(text) + self._after

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
