"""A row of messages in which running requests only went on: gathered one by one, then applied as one.

Each of them is a step of the same requests, or its output with a token for each; tables grew by new blocks, and nothing
else happened. `add` proves that against the ledger and changes nothing there. What comes to be at a time of its own, as
a block or a token does, keeps that time.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from kvledger.clock import NS_PER_SECOND
from kvledger.writer import Ledger
from kvledger_vllm.holdings import Holdings
from kvledger_vllm.message import SCHEDULE, UPDATE, Message
from kvledger_vllm.mirror import Mirror
from kvledger_vllm.requests import Requests
from kvledger_vllm.tokenrow import TokenRow
from kvledger_vllm.tokens import Tokens

_MOST_MESSAGES = 256
_HELD_ONCE = 1 << 2
"""`reading.code_of` a block with one reference."""
Grown = dict[int, list[int]]


class Row:
    """The messages that were gathered. Whoever has them applied opens the publication, and ends it."""

    def __init__(self, ledger: Ledger, requests: Requests, mirror: Mirror, holdings: Holdings, tokens: Tokens) -> None:
        self._requests, self._mirror, self._holdings = requests, mirror, holdings
        self._tokens, self._references = TokenRow(ledger, tokens), ledger.blocks.ref_count.data
        self.messages: list[Message] = []
        # By slot: its table's blocks behind those that the ledger shows.
        self._behind: Grown = {}
        self._taken: dict[int, int] = {}
        """Block -> when it was taken."""

    def add(self, message: Message) -> bool:
        """Gather a message; False where it is none of these, so that the row has to be applied before it."""
        messages = self.messages
        if message.rare is not None or message.tokens is not None or message.idle or not message.step:
            return False
        if messages and (
            len(messages) >= _MOST_MESSAGES
            # A peak belongs to the second it was in.
            or message.now_ns // NS_PER_SECOND != messages[0].now_ns // NS_PER_SECOND
        ):
            return False
        if message.kind == SCHEDULE:
            grown = self._grown(message)
            if grown is None or not self._tokens.may_schedule() or not self._proven(message.proof, grown):
                return False
            for slot, blocks in grown.items():
                self._behind[slot] = self._behind.get(slot, []) + blocks
                self._taken.update(dict.fromkeys(blocks, message.now_ns))
            self._tokens.schedule(message.step)
        elif message.kind != UPDATE or message.fresh or not self._tokens.update(message.step, message.now_ns):
            return False
        messages.append(message)
        return True

    def apply(self) -> None:
        """Make all of it, in the publication that is open."""
        if self._behind:
            self._holdings.lengthen(self._behind)
            self._mirror.take(self._taken)
        else:
            self._mirror.count()
        self._tokens.apply()

    def clear(self) -> None:
        """Everything is applied."""
        self.messages.clear()
        self._behind.clear()
        self._taken.clear()
        self._tokens.clear()

    def _grown(self, message: Message) -> Grown | None:
        """New blocks by slot, if exactly these are behind tables that are there, held once, and by nobody before."""
        if message.grown is None:
            return None if message.fresh else {}
        ids, lengths, new = message.grown
        numbers = [of_group[0] for of_group in new]
        if list(chain(*numbers)) != message.fresh or message.codes.count(_HELD_ONCE) != len(message.codes):
            return None
        slot_of, references, taken = self._requests.slot_of, self._references, self._taken
        grown: Grown = {}
        for request_id, length, fresh in zip(ids, lengths, numbers, strict=True):
            slot = slot_of.get(request_id, -1)
            before = self._holdings.held(slot) if slot >= 0 else 0
            if not before or before + len(self._behind.get(slot, ())) + len(fresh) != length:
                return None
            grown[slot] = blocks = [block - 1 for block in fresh]
            for block in blocks:
                if references[block] or block in taken:
                    return None
        return grown

    def _proven(self, proof: list[Any] | None, grown: Grown) -> bool:
        """Whether what a few requests say of themselves is what the ledger is going to say."""
        rows = iter(proof or ())
        for request_id, computed, output, last in zip(rows, rows, rows, rows, strict=True):
            slot = self._requests.slot_of.get(request_id)
            if slot is None:
                continue
            if not self._tokens.proves(slot, computed, output):
                return False
            behind = grown.get(slot) or self._behind.get(slot)
            if last >= 0 and last != (behind[-1] if behind else self._holdings.last(slot)):
                return False
        return True
