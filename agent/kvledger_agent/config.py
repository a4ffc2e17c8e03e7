"""The agent's settings: one frozen dataclass, validated once; flags win over environment, environment over defaults."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kvledger_agent.addresses import http_parts
from kvledger_agent.bounds import above_zero
from kvledger_agent.errors import UsageError
from kvledger_agent.scrape.endpoint import parse_endpoint
from kvledger_agent.scrape.fetch import TIMEOUT_SECONDS
from kvledger_agent.verdict.judge import WINDOW_SECONDS

DIRECTORY_VARIABLE = "KVLEDGER_DIR"
AGENT_PREFIX = "KVLEDGER_AGENT_"
OTLP_PATH = "/v1/metrics"
DEFAULT_DIRECTORY = Path("/dev/shm/kvledger")


def default_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Where ledgers are looked for when no flag says so: `KVLEDGER_DIR`, else a directory on tmpfs."""
    return Path((os.environ if environ is None else environ).get(DIRECTORY_VARIABLE) or DEFAULT_DIRECTORY)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """What the agent watches, how often it samples, and where it listens.

    `stale_after_seconds` is the age of the last sample beyond which `/metrics` answers 503. `price_per_hour` is what
    one whole engine costs per hour, in any currency; None leaves the cost to what the engine itself counts.
    `otlp` is the endpoint to export to, None for none; it is tried every `otlp_interval_seconds`, and given up for this
    time after `otlp_timeout_seconds`.
    `scrape` are engines to scrape, each `URL` or `NAME=URL`, asked every `scrape_interval_seconds` and given up for
    this time after `scrape_timeout_seconds`.
    A verdict is judged over the last `verdict_window_seconds`.
    Every field but `directory` has an environment variable `KVLEDGER_AGENT_<FIELD>`; the directory's is `KVLEDGER_DIR`.

    Raises:
        UsageError: a value out of range, naming it.
    """

    directory: Path
    host: str = "127.0.0.1"
    port: int = 9470
    interval_seconds: float = 1.0
    stale_after_seconds: float = 5.0
    price_per_hour: float | None = None
    otlp: str | None = None
    otlp_interval_seconds: float = 10.0
    otlp_timeout_seconds: float = 5.0
    scrape: tuple[str, ...] = ()
    scrape_interval_seconds: float = 5.0
    scrape_timeout_seconds: float = TIMEOUT_SECONDS
    verdict_window_seconds: float = WINDOW_SECONDS

    def __post_init__(self) -> None:
        if not self.host:
            raise UsageError("host is empty: use 127.0.0.1, or the address of one interface")
        if not 0 <= self.port <= 65535:
            raise UsageError(f"port={self.port}: use 0 (any free port) to 65535")
        for name in _SECONDS:
            above_zero(name, getattr(self, name))
        names = [parse_endpoint(text).name for text in self.scrape]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UsageError(f"scrape: {', '.join(twice)} is given twice: name one of them with NAME=URL")
        if self.otlp is not None:
            otlp_url(self.otlp)
        if self.price_per_hour is not None:
            above_zero("price_per_hour", self.price_per_hour)
        if self.stale_after_seconds <= self.interval_seconds:
            raise UsageError(
                f"stale_after_seconds={self.stale_after_seconds:g} is not longer than "
                f"interval_seconds={self.interval_seconds:g}: every scrape would be refused"
            )


_SECONDS = tuple(f.name for f in fields(AgentConfig) if f.name.endswith("_seconds"))


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


_PARSERS: dict[str, Callable[[str], Any]] = {"directory": Path, "host": str, "port": int, "otlp": str, "scrape": _list}


def otlp_url(endpoint: str) -> str:
    """The URL that metrics are posted to: `/v1/metrics` below an endpoint that does not name it already.

    Raises:
        UsageError: it is no http(s) URL, or carries what may be a secret, which the message does not repeat.
    """
    if any(mark in endpoint for mark in "@?#"):
        raise UsageError(
            "otlp carries credentials or a query, which everybody sees in the list of processes: "
            "give headers in OTEL_EXPORTER_OTLP_HEADERS"
        )
    parts = http_parts(endpoint)
    if parts is None:
        raise UsageError(f"otlp={endpoint[:200]!r}: use a URL such as http://127.0.0.1:4318")
    path = parts.path.rstrip("/")
    return parts._replace(path=path if path.endswith(OTLP_PATH) else path + OTLP_PATH).geturl()


def resolve(flags: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> AgentConfig:
    """The settings from `flags` (a value of None was not given), the environment and the defaults, in this order.

    Raises:
        UsageError: an unknown `KVLEDGER_AGENT_` variable, a value that cannot be read, or one out of range.
    """
    environ = os.environ if environ is None else environ
    known = {f.name for f in fields(AgentConfig)}
    values: dict[str, Any] = {"directory": default_directory(environ)} | _from_environment(environ, known)
    values |= {name: value for name, value in flags.items() if name in known and value is not None}
    return AgentConfig(**values)


def _from_environment(environ: Mapping[str, str], known: set[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for variable, text in environ.items():
        if not variable.startswith(AGENT_PREFIX) or not text:
            continue
        name = variable.removeprefix(AGENT_PREFIX).lower()
        if name not in known or name == "directory":
            expected = ", ".join(sorted(AGENT_PREFIX + field.upper() for field in known - {"directory"}))
            raise UsageError(f"unknown variable {variable}: known are {expected} and {DIRECTORY_VARIABLE}")
        try:
            values[name] = _PARSERS.get(name, float)(text)
        except ValueError as error:
            raise UsageError(f"{variable}={text!r}: not a number") from error
    return values
