"""API keys: who may ask, and under which tenant's name. Keys come from a file and are kept as digests only."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from kvledger_engine.admission import is_tenant_name
from kvledger_engine.errors import BadConfig

_SCHEME = "bearer"


class ApiKeys:
    """Names by key. A line of the file is a name, white space and a key; empty lines and those with # are none.

    A name may have several keys. Raises `BadConfig`, which names the line and never the key.
    """

    def __init__(self, path: Path) -> None:
        self._names: dict[bytes, str] = {}
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "no UTF-8"
            raise BadConfig(f"api_keys={path}: {reason}; name a file with lines of a name and a key") from None
        for number, line in enumerate(lines, 1):
            if line.strip() and not line.lstrip().startswith("#"):
                self._add(line.split(), f"api_keys={path} line {number}")
        if not self._names:
            raise BadConfig(f"api_keys={path}: there is no key in it; nobody could ask anything")

    def _add(self, words: list[str], where: str) -> None:
        if len(words) != 2 or not is_tenant_name(words[0]):
            raise BadConfig(f"{where}: write a name of at most 64 bytes, a space and a key")
        digest = _digest(words[1])
        if self._names.setdefault(digest, words[0]) != words[0]:
            raise BadConfig(f"{where}: the key has another name above; give each name a key of its own")

    def name_of(self, headers: Mapping[str, str]) -> str | None:
        """The name of the key in `Authorization: Bearer`, None if there is none or it is not known."""
        scheme, _, key = headers.get("Authorization", "").partition(" ")
        # Digests are compared, so how long that takes says nothing about a key.
        return self._names.get(_digest(key.strip())) if scheme.lower() == _SCHEME else None


def _digest(key: str) -> bytes:
    return sha256(key.encode(errors="surrogateescape")).digest()
