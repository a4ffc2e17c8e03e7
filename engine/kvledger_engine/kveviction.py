"""KV eviction: what a sequence may forget of itself to hold fewer blocks. Answers change, so it is declared everywhere.

Owns the options. What they make of a model is `model.forgetful`'s; blocks leave their tables as those of any window do,
see `windows`.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from enum import StrEnum

from kvledger_engine.errors import BadConfig


class KvEviction(StrEnum):
    """What is forgotten: nothing; what the last tokens are not; or that, but for the first blocks."""

    NONE = "none"
    SLIDING = "sliding"
    SINK_WINDOW = "sink-window"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What every layer keeps of a sequence: the last `window_tokens`, and the first `sink_blocks`. 0 and 0 = all of it.

    Raises `BadConfig` for options that contradict each other.
    """

    kind: str = KvEviction.NONE.value
    window_tokens: int | None = None
    sink_blocks: int | None = None

    def __post_init__(self) -> None:
        known = [kind.value for kind in KvEviction]
        if self.kind not in known:
            raise BadConfig(f"kv_eviction={self.kind!r}: use one of {', '.join(known)}")
        if self.kind == KvEviction.NONE and (self.window_tokens is not None or self.sink_blocks is not None):
            named = f"kv_window_tokens={self.window_tokens} and kv_sink_blocks={self.sink_blocks}"
            raise BadConfig(f"{named} with kv_eviction='none': choose sliding or sink-window, or leave them out")
        if self.kind != KvEviction.NONE and (self.window_tokens is None or self.window_tokens < 1):
            raise BadConfig(f"kv_window_tokens={self.window_tokens} with kv_eviction={self.kind!r}: use 1 or more")
        if self.kind == KvEviction.SLIDING and self.sink_blocks is not None:
            raise BadConfig(f"kv_sink_blocks={self.sink_blocks} with kv_eviction='sliding': choose sink-window")
        if self.kind == KvEviction.SINK_WINDOW and (self.sink_blocks is None or self.sink_blocks < 1):
            raise BadConfig(f"kv_sink_blocks={self.sink_blocks} with kv_eviction='sink-window': use 1 or more")

    @property
    def evicts(self) -> bool:
        """Whether anything is ever forgotten."""
        return self.kind != KvEviction.NONE

    def said(self, block_size_tokens: int) -> str:
        """A clause for people: what is forgotten, and what that means."""
        sinks = (self.sink_blocks or 0) * block_size_tokens
        kept = f"the first {sinks} and " if sinks else ""
        return f"kv eviction {self.kind}: sequences keep {kept}the last {self.window_tokens} tokens, answers change"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `kvledger engine` that change answers."""
    parser.add_argument(
        "--kv-eviction",
        choices=[kind.value for kind in KvEviction],
        default=KvEviction.NONE.value,
        help="what sequences forget of themselves, which CHANGES ANSWERS: sliding keeps the last --kv-window-tokens, "
        "sink-window the first --kv-sink-blocks, too (default: %(default)s)",
    )
    parser.add_argument("--kv-window-tokens", type=int, metavar="N", help="tokens that every layer goes on seeing")
    parser.add_argument("--kv-sink-blocks", type=int, metavar="N", help="blocks at the front that are never forgotten")
