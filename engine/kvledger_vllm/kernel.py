"""The kernel's calls by which two processes share memory and know of each other's end, whatever Python was built for.

The `os` of a Python that was built for an old C library, as uv's and conda's are, has none of them: libc is asked.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
from typing import Any

from kvledger_vllm.errors import InstrumentError

_CLOSE_ON_EXEC = 1
_PIDFD_SEND_SIGNAL, _PIDFD_OPEN = 424, 434  # on every processor
_LIBC: Any = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


def memory(size: int) -> int:
    """A descriptor of so many bytes that have no name, closed in children that are not meant to have it."""
    descriptor = _checked("memfd_create", _LIBC.memfd_create(b"kvledger", ctypes.c_uint(_CLOSE_ON_EXEC)))
    os.ftruncate(descriptor, size)
    return descriptor


def process(pid: int) -> int:
    """A descriptor of a process, which stays its own whoever gets its number after it."""
    return _checked("pidfd_open", _LIBC.syscall(ctypes.c_long(_PIDFD_OPEN), ctypes.c_long(pid), ctypes.c_long(0)))


def signal(process: int, number: int) -> None:
    """Send a signal to the process of a descriptor."""
    arguments = (_PIDFD_SEND_SIGNAL, process, number, 0, 0)
    _checked("pidfd_send_signal", _LIBC.syscall(*map(ctypes.c_long, arguments)))


def ready(seconds: float, *descriptors: int) -> bool:
    """Wait until one can be read, or its process has ended; False where none is in time. Any number of descriptor."""
    waiting = select.poll()  # `select.select` ends at descriptor 1024
    for descriptor in descriptors:
        waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(seconds * 1000))


def _checked(call: str, result: int) -> int:
    """What a call returned. Raises `InstrumentError` where it failed."""
    if result >= 0:
        return result
    number = ctypes.get_errno()
    missing = number in (errno.ENOSYS, errno.EPERM)
    remedy = ": the mirror needs Linux 5.3 or newer, and a sandbox that has this call" if missing else ""
    raise InstrumentError(f"{call}: {os.strerror(number)}{remedy}")
