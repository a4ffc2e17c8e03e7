"""The profiles, one engine per file, in the order in which a page is tried: a pass-through page is its engine's."""

from __future__ import annotations

from kvledger_agent.scrape.engines import dynamo, llamacpp, lmdeploy, sglang, tensorrt_llm, tgi, vllm
from kvledger_agent.scrape.profile import EngineProfile

PROFILES: tuple[EngineProfile, ...] = (
    vllm.PROFILE,
    sglang.PROFILE,
    tensorrt_llm.PROFILE,
    lmdeploy.PROFILE,
    tgi.PROFILE,
    llamacpp.PROFILE,
    dynamo.PROFILE,
)
