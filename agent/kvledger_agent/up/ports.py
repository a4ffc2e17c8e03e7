"""Which ports what `kvledger up` starts may listen on. Owns the claims of this process; listens nowhere itself."""

from __future__ import annotations

import socket
from contextlib import suppress

_STEP, _SPAN, _PORTS = 10, 200, 1 << 16

_claims: dict[int, socket.socket] = {}


def usable_port(preferred: int) -> int:
    """`preferred` if nobody listens there, otherwise one 10, 20 and so on above it, at last one the kernel picks
    (loopback).

    What is started takes seconds to listen, so the port is claimed until this process ends: of two `kvledger up` that
    start together only one gets it. What the kernel picks may become some client's own in these seconds.
    """
    for port in (*range(preferred, min(preferred + _SPAN, _PORTS), _STEP), 0):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            if port == 0 or _claimed(port):
                return int(probe.getsockname()[1])
    raise AssertionError("the kernel picks a port")


def _claimed(port: int) -> bool:
    """Whether this process has the claim to a port. A socket without a file: the kernel forgets it with the process."""
    if port in _claims:
        return True
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0kvledger-up-{port}")
    except OSError:
        claim.close()
        return False
    _claims[port] = claim
    return True
