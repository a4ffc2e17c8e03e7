"""`POST /v1/completions`: a body becomes a `NewRequest`, or an error that names the field. Pure: no I/O, no clock."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from kvledger_engine.arrival import Arrival, BadBody
from kvledger_engine.body import (
    Asked,
    Body,
    Served,
    TokenId,
    asked,
    cut,
    decode,
    new_request,
    refuse_scores,
    refuse_unsupported,
)
from kvledger_engine.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 16
MAX_LOGPROBS = 5

_ARRAY_OF_PROMPTS = re.compile(rb'\[\s*["\[]')


class CompletionBody(Body, kw_only=True):
    """What only this endpoint has."""

    prompt: msgspec.Raw
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None
    suffix: str | None = None


def parse_completion(body: bytes, arrival: Arrival, served: Served) -> Asked:
    """Check a body and its headers. Raises `BadBody`."""
    found = decode(_BODY, body)
    refuse_unsupported(found, served, {"echo": found.echo, "suffix": found.suffix})
    if found.logprobs is not None:
        refuse_scores("logprobs", served)
    request = new_request(
        found,
        arrival,
        served,
        prompt=cut(_read_prompt(bytes(found.prompt).strip(), served.tokenizer), served, param="prompt"),
        max_tokens=found.max_tokens or DEFAULT_MAX_TOKENS,
        logprobs=found.logprobs,
    )
    return asked(found, request, chat=False)


def _read_prompt(raw: bytes, tokenizer: Tokenizer) -> list[int]:
    """Token ids: a string as the tokenizer has it, an array of ids, or an array with one of either."""
    try:
        if raw.startswith(b'"'):
            return tokenizer.encode(_TEXT.decode(raw))
        if not _ARRAY_OF_PROMPTS.match(raw):
            return _IDS.decode(raw)
        prompts = _PROMPTS.decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadBody(f"prompt must be a string or an array of token ids: {error}", param="prompt") from error
    if len(prompts) != 1:
        raise BadBody(f"{len(prompts)} prompts in one request: send one request for each", param="prompt")
    return tokenizer.encode(prompts[0]) if isinstance(prompts[0], str) else prompts[0]


_BODY = msgspec.json.Decoder(CompletionBody)
_TEXT = msgspec.json.Decoder(str)
_IDS = msgspec.json.Decoder(list[TokenId])
_PROMPTS = msgspec.json.Decoder(list[str | list[TokenId]])
