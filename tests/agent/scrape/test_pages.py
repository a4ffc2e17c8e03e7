"""Every written page is read as its expectation says, which somebody wrote from the engines' semantics alone."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kvledger_agent.scrape.errors import UnknownEngine
from kvledger_agent.scrape.signals import missing_families
from tests.agent.scrape.expected import NAMES, differences
from tests.agent.scrape.scenes import Scene, scenes

SCENES = scenes()
KNOWN = [scene for scene in SCENES if scene.expected.get("engine", "") is not None]


def each(wanted: list[Scene]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("scene", wanted, ids=[scene.name for scene in wanted])


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def contains(version_range: str, version: str) -> bool:
    """Whether a range such as `0.8`, `0.10-0.31`, `<1.3`, `<=0.5.10` or `>=0.5.12` contains a version."""
    known = numbers(version)
    if version_range.startswith("any"):
        return True
    if version_range.startswith(">="):
        return known >= numbers(version_range)
    if version_range.startswith("<="):
        return known[:3] <= numbers(version_range)
    if version_range.startswith("<"):
        return known < numbers(version_range)
    first, _, last = version_range.partition("-")
    low, high = numbers(first), numbers(last or first)
    return not low or low <= known[: len(low)] <= high


@each(SCENES)
def test_the_engine_and_its_versions_are_detected(scene: Scene) -> None:
    if scene.expected.get("engine", "") is None:
        with pytest.raises(UnknownEngine):
            scene.detected()
        return
    detected = scene.detected()

    assert detected.profile.engine == scene.expected.get("engine", detected.profile.engine)
    if "written_for_version" in scene.expected:
        assert detected.version_range is not None
        assert contains(detected.version_range, scene.expected["written_for_version"]), detected.version_range


@each(KNOWN)
def test_every_value_is_the_expected_one_and_what_cannot_be_told_is_unknown(scene: Scene) -> None:
    readings = {str(reading.rank): reading for reading in scene.readings()}

    if "ranks" in scene.expected:
        assert set(readings) == set(scene.expected["ranks"])
        for rank, values in scene.expected["ranks"].items():
            assert not differences(readings[rank], values), f"rank {rank}: (got, expected)"


@each(KNOWN)
def test_families_that_the_version_should_have_are_missed(scene: Scene) -> None:
    known = scene.detected()
    missing = set(missing_families(known.profile, known.version_range, scene.page()))

    if "missing_families" in scene.expected:
        assert missing == set(scene.expected["missing_families"])
    assert missing >= set(scene.expected.get("missing_families_include", ()))


@each(KNOWN)
def test_what_the_numbers_mean_is_known(scene: Scene) -> None:
    semantics = scene.detected().profile.semantics
    expected = scene.expected

    assert semantics.usage_includes_evictable == expected.get(
        "usage_includes_evictable", semantics.usage_includes_evictable
    )
    if expected.get("stale_when_idle_seconds") is not None:
        assert semantics.stale_when_idle_seconds == expected["stale_when_idle_seconds"]
    late = semantics.sampled_at_finish_only
    assert {NAMES.get(name, name) for name in expected.get("sampled_at_finish_only_includes", ())} <= late
    assert not {NAMES.get(name, name) for name in expected.get("sampled_at_finish_only_excludes", ())} & late


@each([scene for scene in KNOWN if "findings_after_seconds" in scene.expected or "findings_never" in scene.expected])
def test_findings_come_within_their_windows_and_no_others(scene: Scene) -> None:
    windows = scene.expected.get("findings_after_seconds", {})
    never = set(scene.expected.get("findings_never", ()))
    last: dict[tuple[str, str], Any] = {}
    for second, by_rank in scene.findings():
        for rank, findings in by_rank.items():
            for finding in findings:
                word = finding.kind.word
                assert word not in never, f"{word} of rank {rank} at {second:g} s: {finding.known}"
                window = windows.get(word, {}).get(rank)
                if window is not None:
                    assert second >= window.get("not_before", 0), f"{word} at {second:g} s"
                    assert finding.certainty.word not in window.get("certainty_not", ())
                    if "block_count" in window and finding.block_count is not None:
                        assert finding.block_count == window["block_count"]
                assert finding.blind, "a scraped engine cannot tell everything"
        for kind, ranks in windows.items():
            for rank, window in ranks.items():
                if "must_by" in window and window["must_by"] <= second:
                    open_now = {finding.kind.word for finding in by_rank.get(rank, ())}
                    last.setdefault((kind, rank), kind in open_now)
    assert all(last.values()), {key for key, standing in last.items() if not standing}
    due = {(kind, rank) for kind, ranks in windows.items() for rank, window in ranks.items() if "must_by" in window}
    assert set(last) == due
