"""What both generating endpoints share: fields of a body, headers, and what they become. Pure: no I/O, no clock."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec

from kvledger_engine.arrival import Arrival, BadBody, request_class_of, tenant_of
from kvledger_engine.decisions import NO_SUCH_MODEL
from kvledger_engine.messages import NewRequest
from kvledger_engine.quotas import Quotas
from kvledger_engine.template import ChatTemplate
from kvledger_engine.tokenizer import Tokenizer

MAX_BODY_BYTES = 32 << 20
LONG_PROMPT_TOKENS = 1 << 20
MAX_SEQUENCES = 128
MAX_WHOLE = 1 << 53
MAX_STOPS = 4

_FIELD = re.compile(r"`\$\.(\w+)|field `(\w+)`")
_BYTE = re.compile(r"\(byte (\d+)\)$")
_NO_NUMBER = re.compile(rb"-?(?:NaN|Infinity)\b")
_NAME_BEFORE = re.compile(rb'"(\w+)"\s*:\s*$')
_LOOK_BACK_BYTES = 80

# JSON has no largest number, the frames to the core do: 2**53 is where other JSON readers end.
TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_WHOLE)]
Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_WHOLE)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class StreamOptions(msgspec.Struct):
    """OpenAI's `stream_options`."""

    include_usage: bool = False


class Body(msgspec.Struct, kw_only=True):
    """OpenAI's fields; vLLM's `cache_salt`, `stop_token_ids`, `ignore_eos`; ours, `queue_timeout` and `run_timeout`.

    Unknown fields are ignored, as both do.
    """

    model: str | None = None
    max_tokens: Count | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_SEQUENCES)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, le=MAX_WHOLE)] | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    cache_salt: str | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    queue_timeout: Seconds | None = None
    run_timeout: Seconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What requests are read with: the model's name, sizes, tokenizer, chat template and the tokens that end it.

    `capacity_tokens` is what the whole pool holds; None = not known. `has_scores` says whether tokens are drawn from
    a distribution: without one there are no log probabilities, and nothing for `top_p` to cut.
    """

    model: str
    vocab_size: int
    max_model_len_tokens: int
    tokenizer: Tokenizer
    eos_token_ids: Sequence[int] = ()
    capacity_tokens: int | None = None
    has_scores: bool = True
    template: ChatTemplate | None = None
    block_size_tokens: int = 1
    quotas: Quotas | None = None

    def context_tokens(self, tenant: str, request_class: str) -> int:
        """The most tokens of one request of this tenant and class, prompt and output."""
        own = None if self.quotas is None else self.quotas.max_context(tenant, request_class)
        return self.max_model_len_tokens if own is None else min(own, self.max_model_len_tokens)

    def held_tokens(self, tenant: str) -> int | None:
        """The most tokens that a tenant can hold; None = not known."""
        if self.quotas is None or self.capacity_tokens is None:
            return self.capacity_tokens
        blocks = self.capacity_tokens // self.block_size_tokens
        return self.quotas.ceiling_blocks(self.quotas.of(tenant), blocks) * self.block_size_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A body that made sense: the request for the core, and how the client wants its answer."""

    request: NewRequest
    stream: bool
    include_usage: bool
    stops: tuple[str, ...] = ()
    chat: bool = False


B = TypeVar("B", bound=Body)


def decode(decoder: msgspec.json.Decoder[B], body: bytes) -> B:
    """A body as its struct. Raises `BadBody`."""
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        field = _FIELD.search(str(error))
        raise _no_number(body, error) or BadBody(str(error), param=(field[1] or field[2]) if field else None) from error


def _no_number(body: bytes, error: Exception) -> BadBody | None:
    """The error for NaN or Infinity, which some JSON writers send and JSON does not have; None for any other fault."""
    found = _BYTE.search(str(error))
    if found is None:
        return None
    at = int(found[1])
    at -= body[at - 1 : at] == b"-"
    value = _NO_NUMBER.match(body, at)
    if value is None:
        return None
    name = _NAME_BEFORE.search(body[max(0, at - _LOOK_BACK_BYTES) : at])
    param, said = name and name[1].decode(), value[0].decode()
    return BadBody(f"{param or 'the body'}: {said} is no JSON number: send a finite one", param=param)


def refuse_unsupported(body: Body, served: Served, others: Mapping[str, object]) -> None:
    """Refuse what would change the answer and is not done here, rather than answer something else. Raises `BadBody`.

    `others` are such fields of one endpoint alone.
    """
    if body.model not in (None, served.model):
        message = f"this engine serves the model {served.model!r} only; {NO_SUCH_MODEL.advice}"
        raise BadBody(message, param="model", decided=NO_SUCH_MODEL)
    penalties = {name: getattr(body, name) for name in ("frequency_penalty", "presence_penalty", "logit_bias")}
    for name, value in (penalties | dict(others)).items():
        if value:
            raise BadBody(f"{name} is not supported here", param=name)
    if body.top_p not in (None, 1.0) and not served.has_scores:
        raise BadBody(_no_scores("top_p", served), param="top_p")


def refuse_scores(name: str, served: Served) -> None:
    """Refuse log probabilities of a model that has none. Raises `BadBody`."""
    if not served.has_scores:
        raise BadBody(_no_scores(name, served), param=name)


def _no_scores(name: str, served: Served) -> str:
    return f"{name} needs a model with a distribution over tokens; {served.model!r} has none"


def new_request(
    body: Body, arrival: Arrival, served: Served, *, prompt: list[int], max_tokens: int, logprobs: int | None
) -> NewRequest:
    """The message to the core. Raises `BadBody`."""
    temperature = 1.0 if body.temperature is None else body.temperature
    drawn = secrets.randbits(31) if temperature > 0 else 0
    return NewRequest(
        request_id=arrival.request_id,
        prompt=prompt,
        max_tokens=max_tokens,
        tenant=tenant_of(arrival, body.user),
        request_class=request_class_of(arrival),
        n=body.n or 1,
        temperature=temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=drawn if body.seed is None else body.seed,
        salt=body.cache_salt or "",
        stop_tokens=_stop_tokens(body, served),
        logprobs=logprobs,
        queue_timeout_seconds=body.queue_timeout,
        run_timeout_seconds=body.run_timeout,
        arrived_ns=arrival.arrived_ns,
    )


def asked(body: Body, request: NewRequest, *, chat: bool) -> Asked:
    """A request with how it is to be answered. Raises `BadBody`."""
    options = body.stream_options or StreamOptions()
    return Asked(
        request=request,
        stream=bool(body.stream),
        include_usage=options.include_usage,
        stops=_stops(body.stop),
        chat=chat,
    )


def cut(tokens: list[int], served: Served, *, param: str) -> list[int]:
    """A prompt of at least one token, within the vocabulary. Raises `BadBody`, which names `param`.

    One beyond what any context holds is cut: the core's verdict is the same, and the socket carries no megabytes that
    nobody will compute.
    """
    if not tokens:
        raise BadBody(f"{param} is empty, it has no token: send at least one", param=param)
    tokens = tokens[: max(served.max_model_len_tokens, LONG_PROMPT_TOKENS) + 1]
    if max(tokens) >= served.vocab_size:
        raise BadBody(f"the prompt has token ids beyond the vocabulary of {served.vocab_size}", param=param)
    return tokens


def _stop_tokens(body: Body, served: Served) -> list[int]:
    own = [] if body.ignore_eos else served.eos_token_ids
    return list(dict.fromkeys((*own, *(body.stop_token_ids or []))))


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = tuple(dict.fromkeys([stop] if isinstance(stop, str) else stop or []))
    if len(stops) > MAX_STOPS or not all(stops):
        raise BadBody(f"stop is a text, or up to {MAX_STOPS} of them, none empty", param="stop")
    return stops
