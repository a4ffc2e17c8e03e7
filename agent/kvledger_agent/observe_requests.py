"""A sample's requests in numbers: live, waiting, oldest, committed. Pure; every word of a ledger is bounds-checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kvledger.clock import NS_PER_SECOND
from kvledger.snapshot import Sample, SlotTable
from kvledger.words import RequestClass, RequestState, WaitCause
from kvledger_agent.lengths import LengthView
from kvledger_agent.needs import blocks_of, longest_tokens
from kvledger_agent.observation import Labels, RequestsView, Series

_CLASSES = RequestClass.words()
_CAUSES = WaitCause.words()
_LIVE = tuple(state for state in RequestState if state is not RequestState.FINISHED)


def requests_view(sample: Sample, lengths: LengthView, peak_running: int) -> RequestsView:
    """All request numbers of one sample."""
    slots, causes, standing = sample.slots, sample.wait_causes(), _standing(sample)
    return RequestsView(
        live=_live(slots, standing),
        waiting=_waiting(slots, causes, standing),
        never_fit=_never_fit(sample),
        oldest_wait_seconds=_oldest_waits(sample, causes),
        oldest_finishing_seconds=oldest_finishing_seconds(sample),
        tenant_blocks={(name,): blocks for name, blocks in sample.stats.tenant_blocks.items()},
        tenant_quota_blocks=_quotas(sample.tenant_quota_blocks),
        effective_concurrency=lengths.by_tenant,
        peak_running=peak_running,
        length_tokens=lengths.tokens,
        maximum_concurrency=lengths.maximum_concurrency,
    )


def committed_blocks(sample: Sample) -> int:
    """Blocks that running requests may still need up to max_tokens, beyond those their tables hold."""
    slots = sample.slots
    running = slots.state == RequestState.RUNNING
    wanted = blocks_of(
        sample.head.limits,
        longest_tokens(sample.head.limits, slots.prompt_tokens[running], slots.max_tokens[running]),
    )
    held = slots.table_blocks[running].astype(np.int64).sum(axis=1)
    return int(np.maximum(wanted - held, 0).sum())


def oldest_finishing_seconds(sample: Sample) -> float:
    """Age of the oldest request that ended and still holds blocks; 0 when there is none."""
    slots = sample.slots
    since = slots.finishing_ns[(slots.state == RequestState.FINISHING) & (slots.finishing_ns > 0)]
    return _seconds(sample.now_ns, int(since.min())) if len(since) else 0.0


def tenant_names(sample: Sample, columns: NDArray[np.int16]) -> list[str]:
    """The tenant name of each column number; `other` for a column that is not in use."""
    names = sample.tenants
    return [names[c] if 0 <= c < len(names) - 1 else names[-1] for c in columns.tolist()]


def class_names(slots: SlotTable) -> list[str]:
    """The class word of each request; the default class where the number is none of ours."""
    return [_CLASSES[c] if c < len(_CLASSES) else _CLASSES[0] for c in slots.request_class.tolist()]


def _standing(sample: Sample) -> Mapping[str, float]:
    """Requests that wait without a slot, by the cause they wait for: the ledger has slots for so many only.

    They stand behind all others in the queue, so they wait for what the queue waits for.
    """
    without = sample.stats.whole("waiting") - int(np.count_nonzero(sample.slots.waiting))
    cause = sample.stats.whole("queue_cause")
    if without <= 0 or sample.control["free_slot_count"] > sample.head.limits.max_num_seqs:
        return {}
    return {_CAUSES[cause] if 0 <= cause < len(_CAUSES) else WaitCause.STEP.word: float(without)}


def _live(slots: SlotTable, standing: Mapping[str, float]) -> Series:
    counts: dict[Labels, float] = {(state.word, name): 0.0 for state in _LIVE for name in _CLASSES}
    counts[RequestState.WAITING.word, _CLASSES[0]] += sum(standing.values())
    words = {int(state): state.word for state in _LIVE}
    for (state, name), times in Counter(zip(slots.state.tolist(), class_names(slots), strict=True)).items():
        if state in words:
            counts[words[state], name] += times
    return counts


def _waiting(slots: SlotTable, causes: NDArray[np.int8], standing: Mapping[str, float]) -> Series:
    counts: dict[Labels, float] = {(cause, name): 0.0 for cause in _CAUSES for name in _CLASSES}
    for cause, number in standing.items():
        counts[cause, _CLASSES[0]] += number
    for (cause, name), times in Counter(zip(causes.tolist(), class_names(slots), strict=True)).items():
        if cause >= 0:
            counts[_CAUSES[cause], name] += times
    return counts


def _oldest_waits(sample: Sample, causes: NDArray[np.int8]) -> Series:
    """Age of the oldest open wait per present cause and tenant; only where somebody waits."""
    oldest: dict[Labels, float] = {}
    waiting = causes >= 0
    tenants = tenant_names(sample, sample.slots.tenant[waiting])
    queued_ns = sample.slots.queued_ns[waiting].tolist()
    for cause, tenant, since in zip(causes[waiting].tolist(), tenants, queued_ns, strict=True):
        labels = (_CAUSES[cause], tenant)
        oldest[labels] = max(oldest.get(labels, 0.0), _seconds(sample.now_ns, since))
    return oldest


def _never_fit(sample: Sample) -> int:
    limits, slots = sample.head.limits, sample.slots
    waiting = slots.waiting
    wanted = blocks_of(limits, longest_tokens(limits, slots.prompt_tokens[waiting], slots.max_tokens[waiting]))
    return int((wanted > limits.capacity_blocks).sum())


def _quotas(quotas: Mapping[str, int]) -> Series | None:
    """Quotas by tenant; None where no tenant has one, since a quota of 0 means that none was set."""
    named: dict[Labels, float] = {(name,): float(blocks) for name, blocks in quotas.items() if blocks > 0}
    return named or None


def _seconds(now_ns: int, since_ns: int) -> float:
    return max(0.0, (now_ns - since_ns) / NS_PER_SECOND)
