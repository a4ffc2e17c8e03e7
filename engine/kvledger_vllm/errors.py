"""Why the instrument gives up. None of these leaves the instrument: vLLM never sees one."""

from __future__ import annotations


class InstrumentError(Exception):
    """Something the instrument cannot do: it marks its ledger with this and switches itself off."""
