"""Tenant columns: which column of the per-tenant counters is whose.

Owns the tenants' names in the ledger and the count of them, in order of first sight; a column is never given up.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from kvledger.catalog import OTHER_TENANT
from kvledger.layout import CONTROL_INDEX
from kvledger.views import Tenants

_USED = CONTROL_INDEX["tenant_count"]


class TenantColumns:
    """The columns of one ledger, `max_tenants` and one for all others."""

    def __init__(self, tenants: Tenants, control: NDArray[Any], max_tenants: int) -> None:
        self._tenants, self._control, self._max_tenants = tenants, control, max_tenants
        used = int(control[_USED])
        self._columns = {bytes(name).decode(errors="replace"): at for at, name in enumerate(tenants.name[:used])}

    def of(self, name: str) -> int:
        """The column of a tenant, made on first sight; the last one (`other`) when all named columns are taken."""
        column = self._columns.get(name)
        if column is None:
            column = self._new(name)
        return column

    def _new(self, name: str) -> int:
        column = int(self._control[_USED])
        if name == OTHER_TENANT or column >= self._max_tenants:
            return self._max_tenants
        self._tenants.name[column] = name.encode()[:64]
        self._control[_USED] = column + 1
        self._columns[name] = column
        return column
