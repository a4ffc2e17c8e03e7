"""Eviction policies by name: which cached block goes first when one has to. What each means: `compiled.lives`."""

from __future__ import annotations

from enum import StrEnum


class Eviction(StrEnum):
    """Least recently used; least frequently used, with age; or first what lies deep in a sequence."""

    LRU = "lru"
    LFU = "lfu"
    PREFIX = "prefix"
