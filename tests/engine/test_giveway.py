"""Who gives way to a request of a higher class: no more than suffice, counting what was promised to them."""

from __future__ import annotations

from kvledger.words import RequestState
from tests.engine.rig import expected
from tests.engine.test_sharing import causes, of, rig_of, states

BATCH, DEFAULT, INTERACTIVE = ({"request_class": kind} for kind in ("batch", "default", "interactive"))


def test_a_small_batch_is_spared_where_it_would_not_be_enough_and_the_next_is_enough_alone() -> None:
    rig = rig_of({"kept": {"reserved_blocks": 6}, "both": {"reserved_blocks": 3}}, classes={}, capacity_blocks=20)
    requests = [of("other", "theirs", 22, 4), of("both", "large", 25, 3, **DEFAULT), of("both", "small", 2, 3, **BATCH)]
    rig.submit(*requests)
    rig.step()
    requests.append(of("both", "i", 8, 1, **INTERACTIVE))
    rig.submit(requests[-1])
    rig.step()
    assert states(rig)["small"] is RequestState.RUNNING
    assert causes(rig) == {"large": "preemption"}
    assert rig.finish().tokens == expected(requests)
    rig.check_empty()


def test_of_two_batches_the_later_gives_way_if_it_is_enough_and_the_larger_if_only_that_is() -> None:
    def victims(blocks: int) -> set[str]:
        rig = rig_of({}, classes={}, capacity_blocks=13)
        rig.submit(of("a", "large", 33, 4, **BATCH), of("a", "small", 13, 4, **BATCH))
        rig.step()
        rig.submit(of("a", "i", blocks * 4 - 1, 1, **INTERACTIVE))
        rig.step()
        return set(causes(rig))

    assert [victims(blocks) for blocks in (4, 9, 13)] == [{"small"}, {"large"}, {"large", "small"}]


def test_what_was_promised_to_a_prompt_comes_back_with_it() -> None:
    rig = rig_of({}, classes={"batch": {"step_tokens": 8}}, capacity_blocks=14)
    rig.submit(of("a", "small", 8, 4, **BATCH), of("a", "begun", 40, 4, **BATCH))
    rig.step(2)
    rig.submit(of("a", "i", 39, 1, **INTERACTIVE))
    rig.step()
    assert causes(rig) == {"begun": "preemption"}, "a few of its blocks are taken, the others are promised"
    rig.finish()


def test_blocks_that_somebody_else_holds_too_do_not_come_back() -> None:
    rig = rig_of({}, classes={}, capacity_blocks=12, prefix_caching=True)
    shared = list(range(16))
    rig.submit(of("a", "first", [*shared, 1], 3, **INTERACTIVE), of("a", "other", 6, 3, **BATCH))
    rig.step()
    rig.submit(of("a", "sharing", [*shared, 2], 3, **BATCH))
    rig.step()
    rig.submit(of("a", "i", 23, 1, **INTERACTIVE))
    rig.step()
    assert causes(rig) == {"other": "preemption"}, "five blocks are in the later one's table, and one is its own"
    rig.finish()
