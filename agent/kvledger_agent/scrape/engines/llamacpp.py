"""llama.cpp, reduced: its unit of memory is the slot. Data only. Its slots are made a page by `scrape.extras`."""

from __future__ import annotations

from kvledger_agent.scrape.profile import EngineProfile, FamilySpec, NameSince, OneName, Semantics, VersionRange

_ON = "start it with --metrics"
_SLOTS = "do not start it with --no-slots: /slots is on by default"

_family = OneName(prefix="llamacpp:", remedy=_ON)

PROFILE = EngineProfile(
    engine="llamacpp",
    title="llama.cpp",
    verified=False,
    default_paths=("/metrics",),
    documents=("/slots",),
    prefixes=("llamacpp:", "llamacpp_slots"),
    markers=("llamacpp:requests_processing", "llamacpp:prompt_tokens_total"),
    versions=(VersionRange(name="any"),),
    semantics=Semantics(usage_includes_evictable=False),
    pool="slots",
    blind=(
        "KV usage (a slot stands for a block here: it is busy or not, whatever of its context is used), blocks shared, "
        "refusals, waits by cause, time to first token, clients that are gone while their slot works on"
    ),
    families=(
        FamilySpec(
            signal="capacity_blocks",
            names=(NameSince("llamacpp_slots"),),
            unit="blocks",
            required=False,
            blind="how many slots there are",
            remedy=_SLOTS,
        ),
        FamilySpec(
            signal="active_blocks",
            names=(NameSince("llamacpp_slots_busy"),),
            unit="blocks",
            required=False,
            blind="busy slots: idle holds cannot be told",
            remedy=_SLOTS,
        ),
        FamilySpec(
            signal="free_blocks",
            names=(NameSince("llamacpp_slots_idle"),),
            unit="blocks",
            required=False,
            blind="idle slots",
            remedy=_SLOTS,
        ),
        _family("running", "requests_processing", unit="requests", blind="whether the engine works at all"),
        _family("waiting", "requests_deferred", unit="requests", blind="the queue: stalls"),
        _family("prompt_tokens_total", "prompt_tokens_total", unit="tokens", blind="whether prompts are computed"),
        _family("generation_tokens_total", "tokens_predicted_total", unit="tokens", blind="whether tokens come"),
        _family("iterations_total", "n_decode_total", unit="steps", required=False, blind="whether it steps"),
    ),
)
