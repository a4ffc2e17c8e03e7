"""The block side of an engine in plain lists and dicts: what `KvCache` must do, block for block, said slowly.

Knows no array and no ledger. One call per operation, in the order in which the engine does things; the machine in
`test_kvcache_machine.py` compares every field after every step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

Content = tuple[int, int, tuple[int, ...]]
"""What an indexed block stands for: salt, content id of the block before it, its own tokens."""
ROOT = 0


@dataclass(slots=True)
class Sequence:
    """One request: its tokens as far as they are known, and what it holds."""

    serial: int
    tenant: int
    salt: int
    tokens: list[int]
    table: list[int] = field(default_factory=list)
    computed: int = 0
    own_from: int = 0
    chain: int = ROOT
    peak: int = 0
    block_seconds: float = 0.0
    _cells: list[int] = field(default_factory=list)

    def cells(self, tokens: int) -> list[int]:
        """What the compute stores for the first tokens: like keys and values, each depends on everything before it."""
        for token in self.tokens[len(self._cells) : tokens]:
            self._cells.append(hash((self._cells[-1] if self._cells else self.salt, token)))
        return self._cells[:tokens]


@dataclass(slots=True)
class Block:
    """One block: who holds it, what is known of it, and the cell of every token slot."""

    cells: list[int | None]
    references: int = 0
    owner: int = 0
    tenant: int = 0
    filled: int = 0
    content: Content | None = None
    content_id: int = 0


class BlockModel:
    """Pool, tables, prefix index, copy-on-write and pins of one engine."""

    def __init__(self, *, capacity: int, size: int, chunks: int, chunk_blocks: int, pins: int, caching: bool) -> None:
        self.size, self.chunks, self.chunk_blocks, self.max_pins, self.caching = (
            size,
            chunks,
            chunk_blocks,
            pins,
            caching,
        )
        self.blocks = [Block([None] * size) for _ in range(capacity)]
        self.free = list(range(capacity - 1, -1, -1))
        self.cached: list[int] = []
        self.index: dict[Content, int] = {}
        self.sequences: dict[int, Sequence] = {}
        self.pins: dict[int, int] = {}
        self.pending: list[tuple[int, int]] = []
        self.copy_pins: list[int] = []
        self.counts = dict.fromkeys(("evictions", "failures", "overflows", "copies", "queried", "hit", "released"), 0)
        self.tenant_seconds: dict[int, float] = {}
        self._contents, self._pins = count(1), count()

    # -- counts ---------------------------------------------------------------------------------------------------

    @property
    def available(self) -> int:
        return len(self.free) + len(self.cached)

    @property
    def active(self) -> list[int]:
        return [number for number, block in enumerate(self.blocks) if block.references]

    def chunks_of(self, blocks: int) -> int:
        return -(-blocks // self.chunk_blocks)

    def free_chunks(self) -> int:
        return self.chunks - sum(self.chunks_of(len(s.table)) for s in self.sequences.values())

    def advance(self, seconds: float) -> None:
        """Time passes: every active block's second is its holders', in equal parts, and its tenant's."""
        for number in self.active:
            block = self.blocks[number]
            self.tenant_seconds[block.tenant] = self.tenant_seconds.get(block.tenant, 0.0) + seconds
            for sequence in self.sequences.values():
                sequence.block_seconds += sequence.table.count(number) * seconds / block.references

    # -- pool -----------------------------------------------------------------------------------------------------

    def _take(self, sequence: Sequence) -> int:
        if self.free:
            number = self.free.pop()
        else:
            number = self.cached.pop(0)
            self.counts["evictions"] += 1
            self._forget(self.blocks[number])
        self.blocks[number] = Block([None] * self.size, 1, sequence.serial, sequence.tenant)
        return number

    def _forget(self, block: Block) -> None:
        assert block.content is not None
        del self.index[block.content]
        block.content, block.content_id = None, 0

    def _share(self, number: int, tenant: int | None) -> None:
        block = self.blocks[number]
        if number in self.cached:
            self.cached.remove(number)
            block.tenant = block.tenant if tenant is None else tenant
        block.references += 1

    def _release(self, number: int) -> None:
        block = self.blocks[number]
        block.references -= 1
        if block.references == 0:
            (self.free if block.content is None else self.cached).append(number)

    # -- requests -------------------------------------------------------------------------------------------------

    def hits(self, sequence: Sequence) -> list[int]:
        """Blocks of the longest indexed prefix that leaves a token to compute."""
        found: list[int] = []
        parent = ROOT
        for k in range((len(sequence.tokens) - 1) // self.size if self.caching else 0):
            number = self.index.get(self._content(sequence, k, parent))
            if number is None:
                break
            found.append(number)
            parent = self.blocks[number].content_id
        return found

    def _content(self, sequence: Sequence, k: int, parent: int) -> Content:
        return sequence.salt, parent, tuple(sequence.tokens[k * self.size : (k + 1) * self.size])

    def admit(self, slot: int, sequence: Sequence, new_tokens: int) -> int | None:
        hits, further = self.hits(sequence), -(-new_tokens // self.size)
        if further > self.available - sum(self.blocks[number].references == 0 for number in hits):
            self.counts["failures"] += 1
            return None
        if self.chunks_of(len(hits) + further) > self.free_chunks():
            self.counts["overflows"] += 1
            return None
        for number in hits:
            self._share(number, sequence.tenant)
        sequence.table = hits + [self._take(sequence) for _ in range(further)]
        sequence.computed = sequence.own_from = len(hits) * self.size
        sequence.chain = self.blocks[hits[-1]].content_id if hits else ROOT
        self.sequences[slot] = sequence
        self._note_peak(sequence)
        if self.caching:
            self.counts["queried"] += len(sequence.tokens)
            self.counts["hit"] += sequence.computed
        return sequence.computed

    def _note_peak(self, sequence: Sequence) -> None:
        sequence.peak = max(sequence.peak, len(sequence.table))

    def needed(self, slot: int, tokens_after: int) -> int:
        """Upper bound of the blocks a slot takes to grow."""
        sequence = self.sequences[slot]
        return self._missing(sequence, tokens_after) + (
            sequence.own_from > sequence.computed and self._write_target(sequence).references >= 2
        )

    def _missing(self, sequence: Sequence, tokens_after: int) -> int:
        return max(0, -(-tokens_after // self.size) - len(sequence.table))

    def _write_target(self, sequence: Sequence) -> Block:
        return self.blocks[sequence.table[sequence.computed // self.size]]

    def _copiers(self, slots: list[int]) -> list[int]:
        """Slots that must copy the block they write next: others hold it, and not all of those have copied before."""
        left = {number: block.references for number, block in enumerate(self.blocks)}
        copiers = []
        for slot in slots:
            sequence = self.sequences[slot]
            if sequence.own_from > sequence.computed:
                number = sequence.table[sequence.computed // self.size]
                if left[number] >= 2:
                    copiers.append(slot)
                left[number] -= 1
        return copiers

    def grow(self, after: dict[int, int]) -> bool:
        missing = {slot: self._missing(self.sequences[slot], tokens) for slot, tokens in after.items()}
        copiers = self._copiers(list(after))
        if sum(missing.values()) + len(copiers) > self.available:
            self.counts["failures"] += 1
            return False
        lengths = {slot: len(self.sequences[slot].table) for slot in after}
        new_chunks = sum(self.chunks_of(lengths[s] + missing[s]) - self.chunks_of(lengths[s]) for s in after)
        if new_chunks > self.free_chunks():
            self.counts["overflows"] += 1
            return False
        for slot, blocks in missing.items():
            sequence = self.sequences[slot]
            sequence.table += [self._take(sequence) for _ in range(blocks)]
            self._note_peak(sequence)
        self._copy(copiers)
        for slot in after:
            sequence = self.sequences[slot]
            sequence.own_from = min(sequence.own_from, sequence.computed)
        return True

    def _copy(self, copiers: list[int]) -> None:
        targets = [self._take(self.sequences[slot]) for slot in copiers]
        sources = []
        for slot, target in zip(copiers, targets, strict=True):
            sequence = self.sequences[slot]
            k = sequence.computed // self.size
            sources.append(sequence.table[k])
            self.blocks[target].filled = sequence.computed % self.size
            self.pending.append((sequence.table[k], target))
            sequence.table[k] = target
            if len(self.pins) < self.max_pins:
                self.copy_pins.append(self._pin(sources[-1]))
            else:
                self.counts["overflows"] += 1
        for number in sources:
            self._release(number)
        self.counts["copies"] += len(copiers)

    def compute(self, after: dict[int, int]) -> None:
        """Make the copies, then write the cells of the new tokens through the tables."""
        copied = [(list(self.blocks[source].cells), target) for source, target in self.pending]
        for cells, target in copied:
            self.blocks[target].cells = cells
        self.pending.clear()
        for slot, tokens in after.items():
            sequence = self.sequences[slot]
            for position, cell in enumerate(sequence.cells(tokens)[sequence.computed :], sequence.computed):
                self.blocks[sequence.table[position // self.size]].cells[position % self.size] = cell

    def copies_done(self) -> None:
        pins, self.copy_pins = self.copy_pins, []
        for pin in pins:
            self.unpin(pin)

    def commit(self, after: dict[int, int]) -> None:
        for slot, tokens in after.items():
            sequence = self.sequences[slot]
            for k in range(sequence.computed // self.size, -(-tokens // self.size)):
                self.blocks[sequence.table[k]].filled = min(self.size, tokens - k * self.size)
            for k in range(sequence.computed // self.size, tokens // self.size if self.caching else 0):
                self._index(sequence, k)
            sequence.computed = tokens

    def _index(self, sequence: Sequence, k: int) -> None:
        content = self._content(sequence, k, sequence.chain)
        if content not in self.index:
            block = self.blocks[sequence.table[k]]
            self.index[content] = sequence.table[k]
            block.content, block.content_id = content, next(self._contents)
            sequence.own_from = max(sequence.own_from, (k + 1) * self.size)
        sequence.chain = self.blocks[self.index[content]].content_id

    def fork(self, source: int, target: int, sequence: Sequence) -> bool:
        parent = self.sequences[source]
        if self.chunks_of(len(parent.table)) > self.free_chunks():
            self.counts["overflows"] += 1
            return False
        for number in parent.table:
            self._share(number, None)
        sequence.table, sequence.computed, sequence.chain = list(parent.table), parent.computed, parent.chain
        parent.own_from = sequence.own_from = len(parent.table) * self.size
        self.sequences[target] = sequence
        self._note_peak(sequence)
        return True

    def release(self, slot: int) -> Sequence:
        sequence = self.sequences.pop(slot)
        self.counts["released"] += len(sequence.table)
        table, sequence.table, sequence.computed, sequence.own_from = sequence.table, [], 0, 0
        for number in reversed(table):
            self._release(number)
        return sequence

    # -- pins -----------------------------------------------------------------------------------------------------

    def pin(self, numbers: list[int]) -> list[int | None]:
        """Pin blocks in turn; None for each that found the table full."""
        pinned: list[int | None] = []
        for number in numbers:
            if len(self.pins) < self.max_pins:
                pinned.append(self._pin(number))
            else:
                pinned.append(None)
                self.counts["overflows"] += 1
        return pinned

    def _pin(self, number: int) -> int:
        self._share(number, None)
        pin = next(self._pins)
        self.pins[pin] = number
        return pin

    def unpin(self, pin: int) -> None:
        self._release(self.pins.pop(pin))
