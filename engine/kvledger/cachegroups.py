"""Cache groups: which layers of a model share a table and a block. A pure function of the layers' windows."""

from __future__ import annotations

from collections.abc import Sequence

from kvledger.geometry import BadShape


def page_layers(windows: Sequence[int | None], most_groups: int) -> tuple[tuple[int, ...], ...]:
    """Layers cut into cache groups that draw on one pool: by window, and of one size, since all blocks are alike.

    `windows` has each layer's window in tokens, None for full attention, whose groups come first. A group's layers are
    numbers into it. A kind whose layers do not fill its last group leaves room in every block of that group; among
    sizes with at most `most_groups` groups the one with the least such room is taken, of equals the largest. Raises
    `BadShape` for more kinds than groups.
    """
    kinds: dict[int | None, list[int]] = {}
    for layer, window in enumerate(windows):
        kinds.setdefault(window, []).append(layer)
    if not 1 <= len(kinds) <= most_groups:
        raise BadShape(f"windows={tuple(windows)}: use 1 to {most_groups} kinds of layer")

    def groups(size: int) -> int:
        return sum(-(-len(layers) // size) for layers in kinds.values())

    largest = max(len(layers) for layers in kinds.values())
    sizes = [size for size in range(largest, 0, -1) if groups(size) <= most_groups]
    size = min(sizes, key=lambda size: groups(size) * size)
    ordered = sorted(kinds.items(), key=lambda kind: (kind[0] is not None, kind[0] or 0))
    return tuple(tuple(layers[first : first + size]) for _, layers in ordered for first in range(0, len(layers), size))
