"""What makes an http address. Resolves nothing, asks nobody."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit


def http_parts(address: str) -> SplitResult | None:
    """The parts of an http or https address that has a host and no impossible port; None for everything else."""
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        (parts.hostname or "").encode("idna")
    except ValueError:  # UnicodeError included: a host that no name server could be asked for
        return None
    return parts if usable and not any(map(str.isspace, address)) else None
