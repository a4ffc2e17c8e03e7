"""A Dynamo worker, reduced: its own families only. A page that passes its engine's through is that engine's."""

from __future__ import annotations

from kvledger_agent.scrape.profile import EngineProfile, FamilySpec, NameSince, Semantics, VersionRange

_PORT = "scrape the worker's system port (DYN_SYSTEM_PORT), not the frontend"
_OLD, _NEW = "<1.6", ">=1.6"

PROFILE = EngineProfile(
    engine="dynamo",
    title="Dynamo worker",
    verified=False,
    default_paths=("/metrics",),
    prefixes=("dynamo_component_",),
    markers=("dynamo_component_total_blocks", "dynamo_component_kvstats_total_blocks"),
    versions=(
        VersionRange(name=_OLD, present=("dynamo_component_kvstats_total_blocks",)),
        VersionRange(name=_NEW, present=("dynamo_component_total_blocks",)),
    ),
    # What counts as used is the engine's behind it, which this page does not name.
    semantics=Semantics(usage_includes_evictable=None, usage_is_exact=True),
    rank_label="dp_rank",
    model_labels=("model", "model_name"),
    blind=(
        "requests that run or wait, what its engine counts as used, blocks kept for reuse or shared, "
        "refusals (the frontend has them), whether anything moves"
    ),
    families=(
        FamilySpec(
            signal="capacity_blocks",
            names=(
                NameSince("dynamo_component_total_blocks", since=_NEW),
                NameSince("dynamo_component_kvstats_total_blocks", until=_OLD),
            ),
            unit="blocks",
            blind="the pool's size",
            remedy=_PORT,
        ),
        FamilySpec(
            signal="active_blocks",
            names=(NameSince("dynamo_component_kvstats_active_blocks", until=_OLD),),
            unit="blocks",
            required=False,
            blind="blocks in use (newer workers publish them within Dynamo only)",
            remedy="nothing switches it on: take the engine's own page",
        ),
        FamilySpec(
            signal="usage_ratio",
            names=(
                NameSince("dynamo_component_gpu_cache_usage_percent", since=_NEW),
                NameSince("dynamo_component_kvstats_gpu_cache_usage_percent", until=_OLD),
            ),
            unit="ratio",
            blind="how full the pool is",
            remedy=_PORT,
        ),
    ),
)
