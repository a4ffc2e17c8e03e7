"""Quotas: what a tenants file can say, and that contradictions are refused with their numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvledger_engine.config import EngineConfig
from kvledger_engine.errors import BadConfig, BadQuotas
from kvledger_engine.quotafile import parse_quotas, read_quotas
from kvledger_engine.quotas import CLASS_DEFAULTS, ClassPolicy, Quotas, TenantQuota, share_scope

ENGINE: dict[str, Any] = {
    "capacity_blocks": 100,
    "block_size_tokens": 16,
    "max_model_len_tokens": 512,
    "max_num_batched_tokens": 256,
    "max_waiting": 50,
    "max_tenants": 4,
}


def tenants(**rows: dict[str, Any]) -> dict[str, Any]:
    return {"tenants": rows}


CONTRADICTIONS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "more is reserved than there is": (
        tenants(a={"reserved_blocks": 60}, b={"reserved_blocks": 41}),
        ("101 = 60 (a) + 41 (b)", "the pool has 100"),
    ),
    "more is reserved for a tenant than it may hold": (
        tenants(a={"reserved_blocks": 30, "max_blocks": 20}),
        ("'a'", "reserved_blocks=30", "max_blocks=20"),
    ),
    "a maximum above the pool": (tenants(a={"max_blocks": 101}), ("'a'", "max_blocks=101", "pool of 100")),
    "a maximum below one request of the longest context": (
        tenants(a={"max_blocks": 10, "max_context": 161}),
        ("'a'", "max_context=161", "takes 11 blocks", "it can hold 10", "max_blocks=10"),
    ),
    "a context for which others' reservations leave no room": (
        tenants(a={"reserved_blocks": 90}, b={"max_context": 161}),
        ("'b'", "takes 11 blocks", "it can hold 10", "90 of 100 are reserved for others"),
    ),
    "nothing left for a tenant at all": (tenants(a={"reserved_blocks": 100}, b={}), ("'b'", "it can hold 0")),
    "nothing left for tenants without a name": (tenants(a={"reserved_blocks": 100}), ("default", "it can hold 0")),
    "a context beyond the engine's": (tenants(a={"max_context": 513}), ("'a'", "max_context=513", "context is 512")),
    "more waiting than the engine lets wait": (
        tenants(a={"max_waiting": 51}),
        ("'a'", "max_waiting=51", "lets 50 wait"),
    ),
    "blocks reserved for anybody": ({"default": {"reserved_blocks": 1}}, ("default", "reserved_blocks=1")),
    "the name of all others": (tenants(other={}), ("'other'", "rename")),
    "more tenants than columns": (tenants(a={}, b={}, c={}, d={}, e={}), ("5 tenants", "columns for 4")),
    "a class with a longer context than the engine": (
        {"classes": {"batch": {"max_context": 600}}},
        ("'batch'", "max_context=600", "engine's is 512"),
    ),
    "a class with more tokens than a step": (
        {"classes": {"interactive": {"step_tokens": 257}}},
        ("'interactive'", "step_tokens=257", "computes 256"),
    ),
}


@pytest.mark.parametrize("contradiction", CONTRADICTIONS)
def test_a_contradiction_is_refused_at_the_start_with_the_numbers(contradiction: str) -> None:
    document, numbers = CONTRADICTIONS[contradiction]
    with pytest.raises(BadQuotas) as failure:
        EngineConfig(**ENGINE, quotas=parse_quotas(document))
    for number in numbers:
        assert number in str(failure.value)


def test_without_chunks_a_class_must_be_able_to_compute_its_longest_prompt_in_a_step() -> None:
    engine = ENGINE | {"chunked_prefill": False, "max_num_batched_tokens": 512}
    quotas = parse_quotas({"classes": {"interactive": {"step_tokens": 100}}})
    with pytest.raises(BadQuotas, match=r"step_tokens=100.*up to 512"):
        EngineConfig(**engine, quotas=quotas)
    quotas = parse_quotas({"classes": {"interactive": {"step_tokens": 100, "max_context": 100}}})
    assert EngineConfig(**engine, quotas=quotas).quotas == quotas


NONSENSE: dict[str, dict[str, Any]] = {
    "a negative reservation": tenants(a={"reserved_blocks": -1}),
    "no block at all": tenants(a={"max_blocks": 0}),
    "a part of a block": tenants(a={"max_blocks": 1.5}),
    "a truth where a number belongs": tenants(a={"reserved_blocks": True}),
    "no weight": tenants(a={"weight": 0}),
    "an endless weight": tenants(a={"weight": float("inf")}),
    "a weight that is a word": tenants(a={"weight": "heavy"}),
    "a context without room for an answer": tenants(a={"max_context": 1}),
    "nobody may wait": tenants(a={"max_waiting": 0}),
    "an endless priority": tenants(a={"priority": 1000}),
    "a share group without a name": tenants(a={"share_group": ""}),
    "a tenant without a name": tenants(**{"": {}}),
    "a tenant name that cannot be printed": tenants(**{"a\n": {}}),
    "a tenant that is no table": tenants(a=7),  # type: ignore[arg-type]
    "tenants that are no table": {"tenants": [1]},
    "an unknown table": {"tenant": {}},
    "a key with a slip": tenants(a={"max_block": 7}),
    "an unknown class": {"classes": {"urgent": {}}},
    "a class key with a slip": {"classes": {"batch": {"may_prempt": True}}},
    "a window for nobody": {"classes": {"batch": {"reuse_window": 0}}},
    "a maybe": {"classes": {"batch": {"may_preempt": "perhaps"}}},
}


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_nonsense_is_refused(nonsense: str) -> None:
    with pytest.raises(BadQuotas):
        parse_quotas(NONSENSE[nonsense])


def test_a_slip_in_a_key_is_told_with_what_was_meant() -> None:
    with pytest.raises(BadQuotas, match=r"tenant 'a': unknown key 'max_block': did you mean 'max_blocks'\?"):
        parse_quotas(tenants(a={"max_block": 7}))


def test_a_file_says_what_it_says_and_defaults_say_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(
        """
        [tenants.acme]
        reserved_blocks = 20
        max_blocks = 60
        weight = 2.5
        max_context = 400
        max_waiting = 7
        priority = 3
        share_group = "family"

        [tenants."a name, quoted"]

        [default]
        max_blocks = 40

        [classes.interactive]
        max_context = 128
        step_tokens = 64
        """
    )
    quotas = read_quotas(path)
    assert quotas.of("acme") == TenantQuota(
        reserved_blocks=20, max_blocks=60, weight=2.5, max_context=400, max_waiting=7, priority=3, share_group="family"
    )
    assert quotas.of("a name, quoted") == TenantQuota()
    assert quotas.of("stranger") == TenantQuota(max_blocks=40)
    assert quotas.policy("interactive") == ClassPolicy(max_context=128, step_tokens=64, may_preempt=True)
    assert quotas.policy("batch") == CLASS_DEFAULTS["batch"]
    EngineConfig(**ENGINE, quotas=quotas)


@pytest.mark.parametrize("content", [b"[tenants", b"\xff", None])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "tenants.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadQuotas, match=str(path)) as failure:
        read_quotas(path)
    assert isinstance(failure.value, BadConfig)
    assert failure.value.exit_code == 2


def test_a_fault_in_a_file_is_told_with_the_file_and_the_table(tmp_path: Path) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text("[tenants.acme]\nweight = -1\n")
    with pytest.raises(BadQuotas, match=rf"{path}: tenant 'acme': weight=-1"):
        read_quotas(path)


def test_a_ceiling_is_the_maximum_or_what_is_not_reserved_for_others() -> None:
    quotas = parse_quotas(tenants(a={"reserved_blocks": 30}, b={"reserved_blocks": 20, "max_blocks": 60}, c={}))
    assert [quotas.ceiling_blocks(quotas.of(name), 100) for name in ("a", "b", "c", "d")] == [80, 60, 50, 50]


def test_prefixes_are_shared_within_a_tenant_or_a_share_group() -> None:
    quotas = parse_quotas(tenants(a={"share_group": "g"}, b={"share_group": "g"}, g={}))
    assert share_scope(quotas, "a") == share_scope(quotas, "b")
    assert len({share_scope(quotas, name) for name in ("a", "g", "stranger", "other stranger")}) == 4
    assert share_scope(None, "a") != share_scope(None, "b")
    assert share_scope(Quotas(), "a") == share_scope(None, "a")
