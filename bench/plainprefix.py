"""The peer: a prefix index in plain Python, a chain of `hash(tuple)` over blocks in a dict. Compares no content."""

from __future__ import annotations


class PlainPrefixIndex:
    """Blocks by the hash of (hash of the prefix before, the block's tokens)."""

    def __init__(self, block_size_tokens: int) -> None:
        self._size = block_size_tokens
        self._blocks: dict[int, int] = {}

    def register(self, tokens: list[int], blocks: list[int], salt: int) -> None:
        """Index the full blocks of a sequence."""
        key, size = salt, self._size
        for number, block in enumerate(blocks):
            key = hash((key, tuple(tokens[number * size : (number + 1) * size])))
            self._blocks.setdefault(key, block)

    def match(self, tokens: list[int], salt: int) -> list[int]:
        """Blocks of the longest indexed prefix that leaves at least one token to compute."""
        key, size, found, get = salt, self._size, [], self._blocks.get
        for start in range(0, (len(tokens) - 1) // size * size, size):
            key = hash((key, tuple(tokens[start : start + size])))
            block = get(key)
            if block is None:
                break
            found.append(block)
        return found
