"""`POST /v1/chat/completions`: messages become a prompt through the model's chat template. Pure: no I/O, no clock."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from kvledger_engine.arrival import Arrival, BadBody, request_class_of, tenant_of
from kvledger_engine.body import (
    Asked,
    Body,
    Count,
    Served,
    asked,
    cut,
    decode,
    new_request,
    refuse_scores,
    refuse_unsupported,
)
from kvledger_engine.template import BadMessages

MAX_TOP_LOGPROBS = 20


class Part(msgspec.Struct):
    """A part of a message's content. Only text is read."""

    type: str
    text: str | None = None


class Message(msgspec.Struct):
    """One message; null is no content."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None


class Format(msgspec.Struct):
    """OpenAI's `response_format`."""

    type: str


class ChatBody(Body, kw_only=True):
    """What only this endpoint has. `max_completion_tokens` is OpenAI's newer name of `max_tokens`."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: Any = None
    functions: Any = None
    response_format: Format | None = None


def parse_chat(body: bytes, arrival: Arrival, served: Served) -> Asked:
    """Check a body and its headers. Raises `BadBody`."""
    found = decode(_BODY, body)
    formatted = found.response_format is not None and found.response_format.type != "text"
    others = {"tools": found.tools, "functions": found.functions, "response_format": formatted}
    refuse_unsupported(found, served, others)
    prompt = cut(_prompt(found.messages, served), served, param="messages")
    chosen = found.max_completion_tokens or found.max_tokens
    request = new_request(
        found,
        arrival,
        served,
        prompt=prompt,
        max_tokens=chosen or _all_that_is_left(len(prompt), found, arrival, served),
        logprobs=_logprobs(found, served),
    )
    return asked(found, request, chat=True)


def _logprobs(body: ChatBody, served: Served) -> int | None:
    if not body.logprobs:
        if body.top_logprobs:
            raise BadBody("top_logprobs needs logprobs: true", param="top_logprobs")
        return None
    refuse_scores("logprobs", served)
    return body.top_logprobs or 0


def _all_that_is_left(prompt_tokens: int, body: ChatBody, arrival: Arrival, served: Served) -> int:
    """The default of `max_tokens`: what context, pool and quotas leave each sequence. At least 1: the core decides."""
    tenant = tenant_of(arrival, body.user)
    left, held = served.context_tokens(tenant, request_class_of(arrival)), served.held_tokens(tenant)
    if held is not None:
        left = min(left, prompt_tokens + (held - prompt_tokens) // (body.n or 1))
    return max(1, left - prompt_tokens)


def _prompt(messages: list[Message], served: Served) -> list[int]:
    if served.template is None:
        raise BadBody(
            "this checkpoint has no chat template: use /v1/completions, or put a chat_template.jinja beside it",
            param="messages",
        )
    try:
        text = served.template.render([_plain(message) for message in messages])
    except BadMessages as error:
        raise BadBody(str(error), param="messages") from error
    # The template has written the special tokens already.
    return served.tokenizer.encode(text, special=False)


def _plain(message: Message) -> dict[str, str]:
    named = {} if message.name is None else {"name": message.name}
    return {"role": message.role, "content": _text(message.content), **named}


def _text(content: str | list[Part] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type != "text" or part.text is None:
            raise BadBody(f"a content part of type {part.type[:40]!r} is not read here: send text", param="messages")
    return "".join(part.text or "" for part in content)


_BODY = msgspec.json.Decoder(ChatBody)
