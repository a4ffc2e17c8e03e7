"""Colours by meaning, for a light and a dark page. Chosen to stay apart for people who do not tell red from green."""

from __future__ import annotations

from collections.abc import Mapping

_LIGHT: Mapping[str, str] = {
    "free": "#E2E8F0",
    "cached": "#A7D3F0",
    "active": "#1F6FB2",
    "private": "#1F6FB2",
    "shared": "#0B3558",
    "pinned": "#F2A900",
    "leaked": "#D1242F",
    "finding": "#B83280",
    "logical": "#7A8BA0",
    "line": "#475569",
    "outside": "rgba(0,0,0,0)",
}
_DARK: Mapping[str, str] = {
    "free": "#2A3648",
    "cached": "#3F6E92",
    "active": "#4DA3E8",
    "private": "#4DA3E8",
    "shared": "#B9DDFA",
    "pinned": "#F5B942",
    "leaked": "#FF5A5F",
    "finding": "#F28CC4",
    "logical": "#8A9BB0",
    "line": "#CBD5E1",
    "outside": "rgba(0,0,0,0)",
}
CAUSES: Mapping[str, str] = {
    "pool": "#D1242F",
    "tenant_quota": "#B83280",
    "fair_share": "#8C6BB1",
    "class_budget": "#C49A6C",
    "batch_slots": "#F2A900",
    "token_budget": "#E07B39",
    "step": "#94A3B8",
    "preemption": "#1F6FB2",
    "paused": "#5E7F73",
    "deferred": "#2AA198",
}
"""Why a request waits. The healthy engine's wait, `step`, is the grey one."""


def palette(*, dark: bool) -> Mapping[str, str]:
    """Colours by what they mean."""
    return _DARK if dark else _LIGHT
