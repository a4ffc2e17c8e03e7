"""What brings each engine into its trouble: how it is started, what is sent to it, what is done to it."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from types import MappingProxyType
from typing import TYPE_CHECKING

from tests.dashboards.client import send

if TYPE_CHECKING:
    from tests.dashboards.live import Live

SETTINGS = MappingProxyType(
    {
        "storm": "--blocks 96 --max-num-seqs 12 --max-waiting 8 --watermark 6 --max-model-len 1024 "
        "--step-time base=8ms",
        "quota": "--blocks 64 --max-num-seqs 8 --max-waiting 8 --max-model-len 2048 --step-time base=10ms "
        "--preemption swap --swap-blocks 64 --tenants {files}/tenants.toml",
        "forks": "--blocks 128 --max-num-seqs 8 --step-time base=300ms --run-timeout 2",
        "busy": "--blocks 4096 --max-num-seqs 32 --step-time base=60ms",
        "leak": "--blocks 64 --fault skipped_free --step-time base=20ms",
        "lost": "--blocks 64 --fault free_list_loss --step-time base=20ms",
        "frozen": "--blocks 64 --step-time base=40ms",
        "dead": "--blocks 64 --step-time base=40ms --allocation grow --no-prefix-caching --max-model-len 640",
    }
)
"""Flags of each engine. Beside them are `vllm`, a page that is scraped, `cramped`, whose ledger has no room, and
`stalled`, whose loop was left alone."""
STALLED = "stalled"
TENANTS = """
[tenants.tenant-0]
max_blocks = 24
max_context = 384

[classes.batch]
step_tokens = 64
"""
"""Of the engine `quota`: half of its requests are tenant-0's."""
VERDICTS = MappingProxyType({"leak": "leaking", "stalled": "stalled", "frozen": "frozen", "dead": "unknown"})
STORM = """
kvledger_maximum_concurrency{engine="storm"}
and on (engine) sum by (engine) (rate(kvledger_tenant_rejections_total[4s])) > 0
and on (engine) sum by (engine) (max_over_time(kvledger_group_shared_blocks[2m])) > 0
"""
"""What must have been seen of the storm before its panels are looked at: that it is one is a matter of chance."""
FORKED, RUNNING, BUSY_TOKENS, TOO_LONG_TOKENS = 40, 24, 2500, 1100


def provoke(live: Live) -> None:
    """Put every engine into its trouble at once, then wait until Prometheus has seen each."""
    live.wait_for({"quiet": 'kvledger_pool_blocks{engine="storm",state="free"} > 0'})
    live.load("storm", "--profile", "storm", "--rate", "24", "--length-scale", "0.6")
    live.load("quota", "--profile", "storm", "--rate", "10", "--length-scale", "0.6", "--tenants", "2")
    for name in ("leak", "frozen", "dead"):
        send(live.engines[name]["url"], prompt_tokens=96, tokens=400, events_read=3 if name == "leak" else None)
    send(live.engines["lost"]["url"], prompt_tokens=96, tokens=8)
    send(live.engines["quota"]["url"], prompt_tokens=TOO_LONG_TOKENS, tokens=8)
    for number in range(FORKED):
        send(live.engines["forks"]["url"], prompt_tokens=20 + number, tokens=3 if number % 4 else 60, n=4)
    for number in range(RUNNING):
        send(live.engines["busy"]["url"], prompt_tokens=32, tokens=BUSY_TOKENS, first_token=1 + number)
    busy = {name: f'sum(kvledger_tenant_blocks{{engine="{name}"}}) > 0' for name in ("frozen", "dead")}
    live.wait_for({f"{name} at work": expr for name, expr in busy.items()})
    os.kill(live.engines["frozen"]["core_pid"], signal.SIGSTOP)
    os.kill(live.engines["dead"]["core_pid"], signal.SIGKILL)
    scenes = {name: f'kvledger_verdict{{engine="{name}",verdict="{word}"}} == 1' for name, word in VERDICTS.items()}
    live.wait_for(scenes | {"storm": STORM, "lost": 'abs(kvledger_invariant_violations{engine="lost"}) > 0'})
    alerts = {"KvledgerBlockLeak": "leak", "KvledgerEngineFrozen": "frozen"}
    firing = 'ALERTS{{alertname="{}",engine="{}",alertstate="firing"}}'
    live.wait_for({alert: firing.format(alert, engine) for alert, engine in alerts.items()})
    live.engines["again"] = live.engine("dead")
    live.wait_for({"restart": 'increase(kvledger_engine_restarts_total{engine="dead"}[4s]) > 0'})
    # Its room is in pieces soon: runs that grow are what the paged engine's allocations never fail of.
    live.load("again", "--profile", "storm", "--rate", "10", "--length-scale", "0.5")


def hold_storm(live: Live) -> None:
    """Keep the storm's ledger as it is for so long that its page and its scorecard say the same."""
    core = live.engines["storm"]["core_pid"]
    os.kill(core, signal.SIGSTOP)
    try:
        live.wait_for({"still": 'kvledger_engine_heartbeat_age_seconds{engine="storm"} > 2.5'})
        with urllib.request.urlopen(f"{live.agent}/v1/engines/storm/scorecard", timeout=10) as answer:
            live.scorecard = json.load(answer)
    finally:
        os.kill(core, signal.SIGCONT)
