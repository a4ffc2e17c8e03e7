"""Which ports what `kvledger up` starts may listen on. Owns the claims of this process; listens nowhere itself."""

from __future__ import annotations

import socket

_claims: dict[int, socket.socket] = {}


def usable_port(preferred: int) -> int:
    """`preferred` if nobody listens there, otherwise one the kernel picks (loopback).

    What is started takes seconds to listen, so the port is claimed until this process ends: of two `kvledger up` that
    start together only one gets it.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", preferred if _claimed(preferred) else 0))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
