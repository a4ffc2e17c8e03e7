"""From where on a value is bad: the dashed lines and colours of the panels. Owns the numbers, and no colour.

What an alert or the verdict compares with is the same number there; tests hold these against
`kvledger_alerts.table.Parameters` and the agent's thresholds, which this package does not import.
"""

from __future__ import annotations

NEARLY_FULL, FULL = 0.9, 0.98
"""Shares of a pool: the usual alert watermark, and where a pool under pressure is critical."""
EXHAUSTION_SECONDS = 300.0
"""So little time until there is no headroom is told."""
WAIT_P95_SECONDS, OLDEST_WAIT_SECONDS = 5.0, 60.0
"""Of ended waits for one cause, and of a wait that is still open."""
TTFT_SECONDS = 2.5
"""The objective's target for first tokens."""
RELEASE_P95_SECONDS, FINISHING_SECONDS = 1.0, 30.0
"""From the end of a cancelled request to its last block, and of an ended request that still holds some."""
REFUSED = 0.05
"""Share of the requests that are refused."""
QUOTA_USED = 0.95
"""Share of a tenant's quota from which on it is at it."""
BUSY = 0.75
"""Share of the time in which the model is at work."""
HEARTBEAT_SECONDS = 3.0
"""The least age at which a heartbeat makes an engine frozen."""
STALE_SECONDS = 5.0
"""From this age of a sample on the agent's own page answers 503."""
TAIL_WASTE = 0.25
ALLOCATION_SECONDS = 0.005
PUBLISH_SHARE = 0.05
AGENT_CORES = 0.5
LOSS = 1e-9
"""Any loss at all."""
