"""The peer: a block pool as one writes it in plain Python, a block at a time, with the same rules and fewer duties.

A deque of free blocks, a dict as prefix index, an OrderedDict as eviction order, reference counts as ints. It keeps no
owner, tenant, time, stamp or count, compares no content, and shows nothing to anybody.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable


class PlainPool:
    """Blocks 0 … capacity - 1. Free blocks are taken from the front of the deque, then the least recently used."""

    def __init__(self, free: Iterable[int]) -> None:
        self.free = deque(free)
        self.evictable: OrderedDict[int, None] = OrderedDict()
        self.index: dict[int, int] = {}
        self.refs = [0] * len(self.free)
        self.keys: list[int | None] = [None] * len(self.free)

    def take(self, count: int) -> list[int]:
        """`count` blocks with one reference each; evicts when the free ones are used up. Raises `IndexError`."""
        free, evictable, index, refs, keys = self.free, self.evictable, self.index, self.refs, self.keys
        if count > len(free) + len(evictable):
            raise IndexError(f"{count} blocks wanted, {len(free) + len(evictable)} can be taken")
        taken = []
        for _ in range(count):
            if free:
                block = free.popleft()
            else:
                block, _ = evictable.popitem(last=False)
                key = keys[block]
                assert key is not None
                del index[key]
                keys[block] = None
            refs[block] = 1
            taken.append(block)
        return taken

    def register(self, blocks: list[int], keys: list[int]) -> None:
        """Index held blocks under their prefix keys; a key that is indexed already stays with the block it has."""
        index, keys_of = self.index, self.keys
        for block, key in zip(blocks, keys, strict=True):
            if key not in index:
                index[key] = block
                keys_of[block] = key

    def share(self, blocks: list[int]) -> None:
        """One more reference to each block; cached ones come back to life."""
        refs, evictable = self.refs, self.evictable
        for block in blocks:
            if refs[block] == 0:
                del evictable[block]
            refs[block] += 1

    def release(self, blocks: list[int]) -> None:
        """Give one reference to each block back, in the order in which they may be evicted."""
        refs, keys, evictable, free = self.refs, self.keys, self.evictable, self.free
        for block in blocks:
            refs[block] -= 1
            if refs[block] == 0:
                if keys[block] is None:
                    free.appendleft(block)
                else:
                    evictable[block] = None
