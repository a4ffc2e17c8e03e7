"""What is known about a suspicion: the proven owner, or the candidates, or why neither. Pure joins over history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.audit import Audit
from kvledger.clock import NS_PER_SECOND
from kvledger.pins import PinTable, pin_word
from kvledger.snapshot import SlotTable
from kvledger.words import TURNED_AWAY, CancelCause, Event, FindingKind, FinishReason, RejectionReason
from kvledger_agent.finding import Release, RequestRef

MAX_CANDIDATES = 16
_UNWATCHED = (
    "; their beginning was not watched, so that an earlier holder may have left them: ask an agent that watched"
)
_GAVE_BACK = tuple(int(e) for e in (Event.CANCELLED, Event.FINISHED, Event.RELEASED, Event.PREEMPTED))
_SHARED_SECONDS = 1e-6


@dataclass(frozen=True, slots=True)
class BlockHistory:
    """What the ledger says of one block's life: whether it ever had one holder only, and its group."""

    one_holder: bool
    group: int


@dataclass(frozen=True, slots=True)
class Cause:
    """Who left a block behind."""

    owner: RequestRef | None
    candidates: tuple[RequestRef, ...]
    known: str
    release: Release | None = None


def histories(audit: Audit, blocks: list[int]) -> dict[int, BlockHistory]:
    """The histories of blocks the audit has just judged. A block that has changed since then is left out.

    A block's share clock is the integral of 1 / ref_count since its allocation. It equals the time up to the last
    change of the count only if the count was 1 all that time: nobody but its owner ever held it.
    """
    if not blocks:
        return {}
    ids = np.array(blocks, np.int32)
    shared_seconds = audit.values("share_clock", ids)
    held_seconds = (audit.values("share_since_ns", ids) - audit.values("allocated_ns", ids)) / NS_PER_SECOND
    groups, counts = audit.values("group", ids), audit.values("ref_count", ids)
    unmoved = audit.values("changed_seq", ids) <= max(audit.published_seq, 0)
    alone = (np.abs(shared_seconds - held_seconds) < _SHARED_SECONDS) & (counts <= 1)
    # A count of 1 that is not the first one came from another holder, or from the prefix cache.
    alone &= (counts != 1) | (held_seconds == 0)
    rows = zip(blocks, alone.tolist(), groups.tolist(), unmoved.tolist(), strict=True)
    return {block: BlockHistory(one, group) for block, one, group, still in rows if still}


class Registry:
    """Requests by serial: the live ones of a sample, and the ended ones of the drained summaries."""

    def __init__(self, slots: SlotTable, summaries: NDArray[Any] | None, tenants: tuple[str, ...]) -> None:
        self._slots, self._summaries, self._tenants = slots, summaries, tenants

    def find(self, serial: int) -> RequestRef:
        """What is known of a request; for one that left no trace, its serial only."""
        rows = np.flatnonzero(self._slots.serial == np.uint64(serial))
        if len(rows):
            return self._live(serial, int(rows[0]))
        if self._summaries is None:
            return RequestRef(serial=serial)
        ended = np.flatnonzero(self._summaries["serial"] == np.uint64(serial))
        return self._ended(self._summaries[ended[-1]]) if len(ended) else RequestRef(serial=serial)

    def _live(self, serial: int, row: int) -> RequestRef:
        slots = self._slots
        return RequestRef(
            serial=serial,
            id_head=text(slots.id_head[row]),
            id_tail=text(slots.id_tail[row]),
            tenant=self._tenant(int(slots.tenant[row])),
            live=True,
        )

    def _ended(self, row: Any) -> RequestRef:
        return RequestRef(
            serial=int(row["serial"]),
            id_head=text(row["id_head"]),
            id_tail=text(row["id_tail"]),
            tenant=self._tenant(int(row["tenant"])),
            ended=ended_word(int(row["finish_reason"]), int(row["cancel_cause"])),
            ended_clock_ns=int(row["finished_ns"]),
        )

    def _tenant(self, column: int) -> str:
        return self._tenants[column] if 0 <= column < len(self._tenants) - 1 else self._tenants[-1]


def text(raw: bytes) -> str:
    """Bytes of a ledger as text; what is no UTF-8 is shown as replacement characters."""
    return bytes(raw).decode(errors="replace")


def ended_word(finish_reason: int, cancel_cause: int) -> str | None:
    """`stop`, `cancelled:disconnect`, `queue_timeout`, …; None for numbers that are no words of ours."""
    if finish_reason == TURNED_AWAY:
        return RejectionReason.QUEUE_TIMEOUT.word
    if finish_reason >= len(FinishReason):
        return None
    word = FinishReason(finish_reason).word
    return f"{word}:{CancelCause(cancel_cause - 1).word}" if 1 <= cancel_cause <= len(CancelCause) else word


def cause_of(
    kind: FindingKind,
    owner: int,
    *,
    one_holder: bool,
    seq: int,
    clean_seq: int | None,
    events: NDArray[Any] | None,
    registry: Registry,
) -> Cause:
    """Who left blocks behind that last changed in publication `seq`: their proven owner, or those who may have.

    `clean_seq` is the last publication in which the blocks were not suspected, None when they always were. Whoever gave
    blocks back after it may have left a shared block behind: others may have let go of it since.
    """
    if kind is FindingKind.FINISHING_OVERDUE:
        return Cause(
            registry.find(owner), (), "the request itself has ended and still holds its blocks", _release(owner, events)
        )
    if one_holder and owner:
        return Cause(registry.find(owner), (), "no other request ever held these blocks", _release(owner, events))
    serials, known = _gave_back(seq, clean_seq, events)
    if serials and clean_seq is None:
        known += _UNWATCHED
    return Cause(None, tuple(registry.find(serial) for serial in serials[-MAX_CANDIDATES:]), known)


def cause_of_pin(block: int, pins: PinTable, *, now_ns: int, events: NDArray[Any] | None, registry: Registry) -> Cause:
    """Who pinned a block and has not taken the pin back when its lease was over: a request, if its holder is one."""
    rows = np.flatnonzero((pins.block == block) & pins.overdue(now_ns))
    if not len(rows):
        return Cause(None, (), "a pin whose lease was over, and which is gone by now")
    row = int(rows[0])
    kind, holder = int(pins.kind[row]), int(pins.holder[row])
    age, lease = (now_ns - int(pins.since_ns[row])) / NS_PER_SECOND, int(pins.lease_ns[row]) / NS_PER_SECOND
    pin = f"a {pin_word(kind)} pin of holder {holder}"
    known = f"{pin}, {age:.1f} s old with a lease of {lease:.1f} s, that nobody takes back"
    owner = registry.find(holder)
    if owner.tenant is None:
        return Cause(None, (), known)
    return Cause(owner, (), known, _release(holder, events))


def _release(serial: int, events: NDArray[Any] | None) -> Release | None:
    """The last event with which a request gave blocks back, or was to."""
    if events is None:
        return None
    own = events[(events["serial"] == np.uint64(serial)) & np.isin(events["event"], _GAVE_BACK)]
    if not len(own):
        return None
    last = own[-1]
    return Release(
        event=Event(int(last["event"])).word,
        seq=int(last["seq"]),
        clock_ns=int(last["time_ns"]),
        blocks=int(last["blocks"]),
    )


def _gave_back(seq: int, clean_seq: int | None, events: NDArray[Any] | None) -> tuple[list[int], str]:
    if events is None:
        return [], "the blocks were shared, and no lifecycle event has been read"
    gave_back = events[np.isin(events["event"], _GAVE_BACK)]
    same = _serials(gave_back[gave_back["seq"] == np.uint64(seq)])
    if same and clean_seq in (None, seq - 1):
        return same, f"the blocks were shared; these gave blocks back in publication {seq}, their last change"
    first = 0 if clean_seq is None else clean_seq
    around = _serials(gave_back[(gave_back["seq"] > np.uint64(first)) & (gave_back["seq"] <= np.uint64(seq))])
    if around:
        which = "these" if len(around) <= MAX_CANDIDATES else f"the last {MAX_CANDIDATES} of {len(around)} that"
        return around, f"the blocks were shared; {which} gave blocks back in publications {first + 1} to {seq}"
    return [], f"the blocks were shared; of requests that gave blocks back up to publication {seq} no event is known"


def _serials(events: NDArray[Any]) -> list[int]:
    """Distinct serials in order of their first event."""
    distinct: Mapping[int, None] = dict.fromkeys(events["serial"].tolist())
    return list(distinct)
