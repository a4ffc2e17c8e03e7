"""The boards' colours: one meaning each, on every board and in every time range."""

from __future__ import annotations

from types import MappingProxyType

GREEN, ORANGE, RED, DARK_RED, PURPLE = "#37872D", "#E0752D", "#C4162A", "#8F0F1E", "#7A3FA0"
BLUE, LIGHT_BLUE, YELLOW, LIGHT_GREEN, LILAC = "#3274D9", "#8AB8FF", "#F2CC0C", "#73BF69", "#B877D9"
GREY, QUIET = "#8E8E8E", "#34383F"
"""Grey says unknown. Quiet is the colour of a count of zero: neither good nor bad."""

VERDICTS = MappingProxyType(
    {
        "healthy": GREEN,
        "pool_bound": "#B0620A",
        "scheduler_bound": "#1F60C4",
        "compute_bound": PURPLE,
        "leaking": RED,
        "stalled": ORANGE,
        "frozen": DARK_RED,
        "unknown": GREY,
    }
)
STATES = MappingProxyType({"active": BLUE, "cached": LIGHT_BLUE, "free": LIGHT_GREEN})
CAUSES = MappingProxyType(
    {
        "pool": RED,
        "tenant_quota": PURPLE,
        "fair_share": LILAC,
        "class_budget": "#5794F2",
        "batch_slots": ORANGE,
        "token_budget": YELLOW,
        "step": LIGHT_GREEN,
        "preemption": "#FF7383",
        "paused": GREY,
        "deferred": LIGHT_BLUE,
    }
)
PARTS = MappingProxyType(
    {f"wait_{cause}": color for cause, color in CAUSES.items()}
    | {"prefill": "#1F60C4", "decode": "#37872D", "other": "#5A5A5A"}
)
"""Of request time. A wait has its cause's colour."""
REASONS = MappingProxyType(
    {
        "long_requests": "#B0620A",
        "one_tenant": "#D68910",
        "retained_prefixes": "#E8B04A",
        "shared_prefixes": "#F2D08A",
        "many_requests": "#8A4B08",
        "preemption_thrash": "#FF7383",
        "overload": "#FFB357",
        "tenant_overload": "#C77C2E",
        "batch_slots": "#1F60C4",
        "token_budget": "#5794F2",
        "head_of_line": "#8AB8FF",
        "quota": "#3274D9",
        "slow_allocation": "#C0D8FF",
        "compute": PURPLE,
        "leak": RED,
        "no_progress": ORANGE,
        "no_heartbeat": DARK_RED,
        "full_use": "#73BF69",
        "light": GREEN,
        "missing_signals": GREY,
    }
)
"""Shades of the verdict's colour: browns for the pool, blues for the scheduler."""
BAD_ENDINGS = MappingProxyType({"pool_exhausted": RED, "out_of_memory": DARK_RED, "engine_error": PURPLE})
