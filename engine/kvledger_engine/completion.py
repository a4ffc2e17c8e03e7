"""`POST /v1/completions`: a body becomes a `NewRequest`, or an error that names the field. Pure: no I/O, no clock."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from kvledger.words import RejectionReason, RequestClass
from kvledger_engine.messages import NewRequest
from kvledger_engine.tokenizer import Tokenizer
from kvledger_engine.wire import BAD_REQUEST, ApiError

MAX_BODY_BYTES = 32 << 20
LONG_PROMPT_TOKENS = 1 << 20
MAX_SEQUENCES = 128
MAX_TENANT_BYTES = 64
MAX_WHOLE = 1 << 53
DEFAULT_MAX_TOKENS = 16
DEFAULT_TENANT = "default"
TENANT_HEADER, CLASS_HEADER, REQUEST_ID_HEADER = "X-Tenant", "X-Class", "X-Request-Id"

_FIELD = re.compile(r"`\$\.(\w+)|field `(\w+)`")
_PLAIN_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_ARRAY_OF_PROMPTS = re.compile(rb'\[\s*["\[]')

# JSON has no largest number, the frames to the core do: 2**53 is where other JSON readers end.
TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_WHOLE)]


class StreamOptions(msgspec.Struct):
    """OpenAI's `stream_options`."""

    include_usage: bool = False


class CompletionBody(msgspec.Struct):
    """OpenAI's fields, and vLLM's `cache_salt`, `stop_token_ids`, `ignore_eos`. Unknown ones are ignored: both do."""

    prompt: msgspec.Raw
    model: str | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=MAX_WHOLE)] | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_SEQUENCES)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, le=MAX_WHOLE)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    cache_salt: str | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    stop: str | list[str] | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What requests are read with: the model's name, vocabulary, longest context, tokenizer and tokens that end it."""

    model: str
    vocab_size: int
    max_model_len_tokens: int
    tokenizer: Tokenizer
    eos_token_ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A body that made sense: the request for the core, and how the client wants its answer."""

    request: NewRequest
    stream: bool
    include_usage: bool


class BadBody(Exception):
    """A request that is refused for its form; `param` names the field or header, where one is to blame."""

    def __init__(self, message: str, *, param: str | None = None, status: int = BAD_REQUEST) -> None:
        super().__init__(message)
        self.param, self.status = param, status

    @property
    def error(self) -> ApiError:
        """The answer to the client."""
        code = RejectionReason.BAD_REQUEST.word
        return ApiError(status=self.status, code=code, message=str(self), param=self.param)


def parse_completion(
    body: bytes, headers: Mapping[str, str], served: Served, *, request_id: str, arrived_ns: int
) -> Completion:
    """Check a body and its headers. Raises `BadBody`."""
    found = _decode(body)
    _refuse_unsupported(found, served)
    temperature = 1.0 if found.temperature is None else found.temperature
    drawn = secrets.randbits(31) if temperature > 0 else 0
    request = NewRequest(
        request_id=request_id,
        prompt=_prompt_tokens(found.prompt, served),
        max_tokens=found.max_tokens or DEFAULT_MAX_TOKENS,
        tenant=_tenant(headers.get(TENANT_HEADER), found.user),
        request_class=_request_class(headers.get(CLASS_HEADER)),
        n=found.n or 1,
        temperature=temperature,
        seed=drawn if found.seed is None else found.seed,
        salt=found.cache_salt or "",
        stop_tokens=_stop_tokens(found, served),
        arrived_ns=arrived_ns,
    )
    options = found.stream_options or StreamOptions()
    return Completion(request=request, stream=bool(found.stream), include_usage=options.include_usage)


def _stop_tokens(body: CompletionBody, served: Served) -> list[int]:
    own = [] if body.ignore_eos else served.eos_token_ids
    return list(dict.fromkeys((*own, *(body.stop_token_ids or []))))


def malformed(headers: Mapping[str, str], request_id: str) -> NewRequest:
    """What stands for a body that cannot be read, so that the core refuses and counts it: an empty prompt."""
    try:
        tenant = _tenant(headers.get(TENANT_HEADER), None)
    except BadBody:
        tenant = DEFAULT_TENANT
    return NewRequest(request_id=request_id, prompt=[], max_tokens=1, tenant=tenant)


def request_id_of(headers: Mapping[str, str]) -> str:
    """`cmpl-` and the client's X-Request-Id if that is plain, else something random."""
    given = headers.get(REQUEST_ID_HEADER, "")
    return f"cmpl-{given if _PLAIN_ID.fullmatch(given) else secrets.token_hex(12)}"


def distinct_id(request_id: str) -> str:
    """The id with something random behind it, for a client that uses one twice at once."""
    return f"{request_id}-{secrets.token_hex(4)}"


def _decode(body: bytes) -> CompletionBody:
    try:
        return _BODY.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        field = _FIELD.search(str(error))
        raise BadBody(str(error), param=(field[1] or field[2]) if field else None) from error


def _refuse_unsupported(body: CompletionBody, served: Served) -> None:
    """Refuse what would change the answer and is not done here, rather than answer something else."""
    if body.model not in (None, served.model):
        raise BadBody(f"this engine serves the model {served.model!r} only", param="model")
    given = {"echo": body.echo, "logprobs": body.logprobs is not None, "suffix": body.suffix, "stop": body.stop}
    for name, value in given.items():
        if value:
            hint = "; stop_token_ids takes the ids of tokens to stop at" if name == "stop" else ""
            raise BadBody(f"{name} is not supported here{hint}", param=name)


def _prompt_tokens(raw: msgspec.Raw, served: Served) -> list[int]:
    """Token ids of a prompt: a string as the tokenizer has it, an array of ids, or an array with one of either.

    One beyond what any context holds is cut: the core's verdict is the same, and the socket carries no megabytes that
    nobody will compute.
    """
    tokens = _read_prompt(bytes(raw).strip(), served.tokenizer)[
        : max(served.max_model_len_tokens, LONG_PROMPT_TOKENS) + 1
    ]
    if tokens and max(tokens) >= served.vocab_size:
        raise BadBody(f"the prompt has token ids beyond the vocabulary of {served.vocab_size}", param="prompt")
    return tokens


def _read_prompt(raw: bytes, tokenizer: Tokenizer) -> list[int]:
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


def _tenant(header: str | None, user: str | None) -> str:
    tenant = header or user or DEFAULT_TENANT
    if len(tenant.encode(errors="replace")) > MAX_TENANT_BYTES or not tenant.isprintable():
        param = TENANT_HEADER if header else "user"
        raise BadBody(f"a tenant has at most {MAX_TENANT_BYTES} bytes, all printable", param=param)
    return tenant


def _request_class(header: str | None) -> str:
    chosen = header or RequestClass.DEFAULT.word
    if chosen not in RequestClass.words():
        raise BadBody(f"{CLASS_HEADER} is one of {', '.join(RequestClass.words())}", param=CLASS_HEADER)
    return chosen


_BODY = msgspec.json.Decoder(CompletionBody)
_TEXT = msgspec.json.Decoder(str)
_IDS = msgspec.json.Decoder(list[TokenId])
_PROMPTS = msgspec.json.Decoder(list[str | list[TokenId]])
