"""Where an engine is scraped, and under which name it is shown: `URL` or `NAME=URL`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvledger_agent.addresses import http_parts
from kvledger_agent.errors import UsageError
from kvledger_agent.scrape.engines import PROFILES

_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,62})=(?=https?://)")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """`base` is scheme, host and port; `paths` are tried in this order until one is an engine's page."""

    name: str
    base: str
    paths: tuple[str, ...]


def parse_endpoint(text: str) -> Endpoint:
    """An endpoint as it is given on a command line. A URL with a path is asked for that path alone.

    Raises:
        UsageError: it is no http(s) URL, or carries credentials, which everybody sees in the list of processes.
    """
    named = _NAMED.match(text)
    url = text[named.end() :] if named else text
    parts = http_parts(url)
    if "@" in url:
        raise UsageError("a scraped URL carries credentials, which everybody sees in the list of processes: leave them")
    if parts is None:
        raise UsageError(f"{text[:200]!r} is no engine's address: use a URL such as http://127.0.0.1:8000, or NAME=URL")
    path = parts.path.rstrip("/") + (f"?{parts.query}" if parts.query else "")
    known = tuple(dict.fromkeys(path for profile in PROFILES for path in profile.default_paths))
    host = _UNSAFE.sub("-", parts.netloc).strip("-")
    return Endpoint(
        name=named[1] if named else host,
        base=f"{parts.scheme}://{parts.netloc}",
        paths=(path,) if path else known,
    )
