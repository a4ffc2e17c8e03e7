"""One request against an OpenAI-compatible endpoint, with its client's fate. Never raises for a peer's fault.

Of the load's modules the only one that knows aiohttp's client. The API key comes from the environment
(KVLEDGER_API_KEY), never from argv.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress

import aiohttp

from kvledger_agent.addresses import http_parts
from kvledger_agent.errors import EndpointError, UsageError
from kvledger_agent.load.arrivals import Arrival, Fate, FateKind
from kvledger_agent.load.body import BodyWriter
from kvledger_agent.load.outcome import HTTP_OK, Ending, EndKind, Outcome, ending_of_status, failed
from kvledger_agent.load.plan import RequestOptions
from kvledger_agent.load.stream import CompletionStream, gaps_seconds
from kvledger_agent.load.tokens import PromptWriter

API_KEY_VARIABLE = "KVLEDGER_API_KEY"
MAX_ERROR_BODY_BYTES = 64 * 1024
REUSE_SECONDS = 1.0
KEEPALIVE_SECONDS = 2.0
"""Below the idle limit of common servers (uvicorn: 5 s): reusing a connection as the server closes it looks like a
failure of the server."""


def open_session(options: RequestOptions) -> aiohttp.ClientSession:
    """A session without connection limit (the runner bounds what is in flight), cookies or time limits of its own.

    The caller closes it. Raises `UsageError` for a key that cannot be sent, without repeating it.
    """
    key = os.environ.get(API_KEY_VARIABLE)
    if key and not (key.isascii() and key.isprintable()):
        raise UsageError(f"{API_KEY_VARIABLE} is no key: it has a character that no header can carry")
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=options.connect_seconds),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Authorization": f"Bearer {key}"} if key else None,
    )


def api_root(base_url: str) -> str:
    """The endpoint without trailing slash and `/v1`.

    Raises:
        UsageError: not an http or https address, or one with credentials, which everybody sees in the list of
            processes; the message does not repeat them.
    """
    parts = http_parts(base_url)
    if "@" in base_url:
        raise UsageError(f"url carries credentials: leave them; a key goes into {API_KEY_VARIABLE}")
    if parts is None or parts.query or parts.fragment:
        raise UsageError(f"url={base_url[:200]!r}: use one such as http://127.0.0.1:8000")
    return base_url.rstrip("/").removesuffix("/v1")


async def first_model(session: aiohttp.ClientSession, base_url: str, *, within_seconds: float) -> str:
    """The first model the endpoint serves, by `GET /v1/models`.

    Raises:
        EndpointError: no answer, or not one that names a model.
    """
    url = f"{api_root(base_url)}/v1/models"
    try:
        async with asyncio.timeout(within_seconds), session.get(url) as response:
            return str(json.loads(await bounded_body(response))["data"][0]["id"])
    except (aiohttp.ClientError, OSError) as error:
        if isinstance(error, aiohttp.ClientConnectorError):
            raise EndpointError(
                f"nobody answers at {url}: {error.os_error}; start the endpoint, or correct its address"
            ) from error
        reason = str(error) or type(error).__name__
        raise EndpointError(f"{url}: {reason}; start the endpoint, or name its model to skip this question") from error
    except (ValueError, LookupError, TypeError) as error:
        raise EndpointError(f"{url}: the answer names no model; give the model's name") from error


class CompletionClient:
    """Sends planned requests over one session; keeps no state between them."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        base_url: str,
        model: str,
        options: RequestOptions,
        writer: PromptWriter,
    ) -> None:
        """The session stays the caller's to close."""
        self._session = session
        self._url = f"{api_root(base_url)}/v1/completions"
        self._options = options
        self._bodies = BodyWriter(model=model, options=options, prompts=writer)

    async def send(self, arrival: Arrival, *, intended_seconds: float) -> Outcome:
        """Send one request and follow it to its end, or to its fate.

        Args:
            arrival: what to send.
            intended_seconds: when it should have been sent, in the event loop's time; all latencies count from there.
        """
        now = asyncio.get_running_loop().time
        body = self._bodies.write(arrival)
        headers = {"Content-Type": "application/json", "X-Tenant": arrival.tenant, "X-Class": arrival.request_class}
        late_seconds = max(0.0, now() - intended_seconds)
        stream = CompletionStream()
        ending = await self._follow(arrival.fate, stream, body, headers)
        ended_seconds = now() if stream.ended_seconds is None else stream.ended_seconds
        times = stream.token_times
        return Outcome(
            ending=ending,
            late_seconds=late_seconds,
            first_token_seconds=times[0] - intended_seconds if times else None,
            total_seconds=ended_seconds - intended_seconds,
            token_gaps_seconds=gaps_seconds(times),
            prompt_tokens=arrival.prompt_tokens if stream.prompt_tokens is None else stream.prompt_tokens,
            output_tokens=stream.tokens if stream.output_tokens is None else stream.output_tokens,
        )

    async def _follow(self, fate: Fate, stream: CompletionStream, body: bytes, headers: dict[str, str]) -> Ending:
        """The ending, whatever the peer does; an ending the stream already told outlives what comes after it."""
        limit_seconds = self._options.patience_seconds
        meant = fate.after_seconds is not None and fate.after_seconds < limit_seconds
        try:
            async with asyncio.timeout(fate.after_seconds if meant else limit_seconds):
                return await self._exchange(fate, stream, body, headers)
        except aiohttp.ServerTimeoutError:
            return failed("connect_timeout")
        except aiohttp.ClientConnectorError:
            return failed("connect")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if stream.ending is not None:
                return stream.ending
            if isinstance(error, TimeoutError):
                dropped = meant and fate.kind is not FateKind.TIMEOUT
                return Ending(EndKind.CANCELLED if dropped else EndKind.TIMED_OUT)
            return failed("disconnected")

    async def _exchange(self, fate: Fate, stream: CompletionStream, body: bytes, headers: dict[str, str]) -> Ending:
        drops = fate.kind in (FateKind.DISCONNECT, FateKind.RECONNECT)
        now = asyncio.get_running_loop().time
        async with self._session.post(self._url, data=body, headers=headers) as response:
            if response.status != HTTP_OK:
                return ending_of_status(response.status, await bounded_body(response))
            if response.content_type != "text/event-stream":
                return failed("not_a_stream")
            async for data in response.content.iter_any():
                stream.feed(data, now())
                if stream.ending is not None:
                    await _read_to_end(response)
                    return stream.ending
                if drops and stream.tokens >= max(1, fate.after_tokens):
                    response.close()
                    return Ending(EndKind.CANCELLED)
        return stream.close()


async def bounded_body(response: aiohttp.ClientResponse) -> bytes:
    """The body of an answer, or of a longer one at least its first `MAX_ERROR_BODY_BYTES`, however it comes."""
    body = b""
    while len(body) < MAX_ERROR_BODY_BYTES and (part := await response.content.readany()):
        body += part
    return body


async def _read_to_end(response: aiohttp.ClientResponse) -> None:
    # So that the connection can be used again; a server that keeps the stream open after [DONE] loses it.
    with suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(REUSE_SECONDS):
            while await response.content.readany():
                pass
