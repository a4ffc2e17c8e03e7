"""What `kvledger up` starts when nothing is said: sizes, scales and step times, with the reason for each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TRACE_VARIABLE = "KVLEDGER_TRACE"
TRACE_PLACES = (Path("../shared/traces/azure_conv.csv"), Path("traces/azure_conv.csv"))
ENGINE_PORT, AGENT_PORT = 8000, 9470
EXPLORER_PORT, PROMETHEUS_PORT, ALERTMANAGER_PORT, RUNBOOK_PORT = 8501, 9090, 9093, 9095
ENDLESS_SECONDS = 365 * 86_400
DRAIN_SECONDS = 4
DEFAULT_PROFILE = "mixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpSettings:
    """Sizes of the embedded engine and of its load.

    The pool is too small for the trace's bursts and the context limit lies below its longest prompts, so that waits,
    preemptions and refusals are real: 8.3 % of the Azure conversation trace exceeds 4,096 tokens.
    """

    engine: str = "embedded"
    model: str = "embedded"
    blocks: int = 1600
    block_size_tokens: int = 16
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 1024
    max_model_len_tokens: int = 4096
    max_waiting: int = 128
    step_time: str = "base=15ms,token=20us,seq=120us"
    time_scale: float = 0.5
    length_scale: float = 1.0
    rate_per_second: float = 12.0
    tenants: int = 4
    prefixes_per_tenant: int = 2
    prefix_share_percent: float = 60.0
    disconnect_percent: float = 6.0

    @property
    def pool_scales(self) -> str:
        """The engine's sizes in words."""
        return (
            f"model {self.model}, {self.blocks:,} blocks of {self.block_size_tokens} tokens, context limit "
            f"{self.max_model_len_tokens:,}, at most {self.max_num_seqs} sequences; a step takes {self.step_time}"
        )

    def load_scales(self, trace: Path | None, profile: str | None) -> str:
        """What drives the engine, with the scales, in words."""
        population = f"{self.tenants} tenants, {self.disconnect_percent:g} % disconnects"
        if trace is None:
            return f"profile {profile or DEFAULT_PROFILE}, {self.rate_per_second:g} requests/s, {population}"
        return f"{trace.name}, time × {self.time_scale:g}, lengths × {self.length_scale:g}, {population}"

    def engine_arguments(self, directory: Path, port: int, seed: int) -> list[str]:
        """Arguments of `kvledger engine`."""
        given = {
            "--directory": directory,
            "--name": self.engine,
            "--model": self.model,
            "--port": port,
            "--seed": seed,
            "--blocks": self.blocks,
            "--block-size": self.block_size_tokens,
            "--max-num-seqs": self.max_num_seqs,
            "--max-num-batched-tokens": self.max_num_batched_tokens,
            "--max-model-len": self.max_model_len_tokens,
            "--max-waiting": self.max_waiting,
            "--step-time": self.step_time,
        }
        return ["engine", "--json", *_flags(given)]

    def load_arguments(
        self, url: str, *, trace: Path | None, seconds: float | None, seed: int, profile: str | None
    ) -> list[str]:
        """Arguments of `kvledger load`: the trace's arrivals and lengths where there is one, otherwise a profile."""
        given: dict[str, object] = {
            "--url": url,
            "--seed": seed,
            "--for": seconds or ENDLESS_SECONDS,
            "--tenants": self.tenants,
            "--prefixes-per-tenant": self.prefixes_per_tenant,
            "--disconnect": self.disconnect_percent,
            "--drain": DRAIN_SECONDS,
        }
        if trace is None:
            given |= {"--profile": profile or DEFAULT_PROFILE, "--rate": self.rate_per_second}
        else:
            given |= {
                "--trace": trace,
                "--time-scale": self.time_scale,
                "--length-scale": self.length_scale,
                "--prefix-share": self.prefix_share_percent,
            }
        return ["load", "--json", *_flags(given)]


def _flags(given: Mapping[str, object]) -> list[str]:
    return [str(part) for pair in given.items() for part in pair]


def find_trace() -> Path | None:
    """The Azure conversation trace, from KVLEDGER_TRACE or beside the repository; None when there is none."""
    named = os.environ.get(TRACE_VARIABLE)
    places = (Path(named),) if named else TRACE_PLACES
    return next((place for place in places if place.is_file()), None)
