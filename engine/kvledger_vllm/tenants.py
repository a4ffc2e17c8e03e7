"""Whose request it is, from what a request carries: adapter, cache salt, priority, in this order.

A salt may be a secret of its tenant's, so only eight hexadecimal digits of its hash are ever shown.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

DEFAULT = "default"


def tenant_of(request: Any) -> str:
    """The name of a request's tenant."""
    adapter = getattr(request, "lora_request", None)
    if adapter is not None:
        return f"adapter-{getattr(adapter, 'lora_name', None) or getattr(adapter, 'lora_int_id', 0)}"
    salt = getattr(request, "cache_salt", None)
    if salt:
        return f"salt-{blake2b(str(salt).encode(), digest_size=4).hexdigest()}"
    priority = getattr(request, "priority", 0)
    return f"priority-{priority}" if priority else DEFAULT
