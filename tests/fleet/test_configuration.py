"""The files under deploy/fleet: accepted by promtool, in step with rules and alerts, and quoted in the docs as is."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvledger_alerts.prometheus import prometheus_document
from kvledger_alerts.rows import alert_rows
from kvledger_alerts.table import Parameters
from tests.fleet.files import FLEET, PAGE, ROOT, lay_out, load, promtool
from tests.fleet.test_rules import ROWS, metrics

LEFT_OUT = {
    "kvledger_capability",
    "kvledger_generation_tokens_total",
    "kvledger_oldest_wait_seconds",
    "kvledger_pool_blocks",
    "kvledger_pool_pinned_blocks",
    "kvledger_preemptions_total",
    "kvledger_prefix_queried_tokens_total",
    "kvledger_recomputed_tokens_total",
    "kvledger_release_seconds_bucket",
    "kvledger_release_seconds_count",
    "kvledger_requests_total",
    "kvledger_tenant_blocks",
    "kvledger_tenant_quota_blocks",
    "kvledger_time_to_first_token_seconds_count",
    "kvledger_wait_seconds_count",
}
"""Alerts look at them, and they have a series for each tenant, cause or signal, or nobody adds them up over clusters:
their alerts are decided in the cluster."""
GROUP, MIB = 10_000, 1 << 20


@pytest.mark.needs("promtool")
def test_prometheus_accepts_the_clusters_configuration_with_and_without_the_sending_part(tmp_path: Path) -> None:
    cluster = lay_out("cluster", tmp_path)
    assert "2 rule files" in promtool("check", "config", "prometheus.yml", where=cluster)
    (cluster / "sender.yml").write_text(
        (cluster / "prometheus.yml").read_text() + (FLEET / "cluster/remote-write.yml").read_text()
    )
    assert "2 rule files" in promtool("check", "config", "sender.yml", where=cluster)


@pytest.mark.needs("promtool")
@pytest.mark.parametrize("name", ["federation.yml", "receiver.yml"])
def test_prometheus_accepts_the_global_ones(name: str, tmp_path: Path) -> None:
    assert "1 rule files" in promtool("check", "config", name, where=lay_out("global", tmp_path))


@pytest.mark.needs("promtool")
def test_a_silent_cluster_is_told_and_nothing_else_is(tmp_path: Path) -> None:
    place = lay_out("global", tmp_path)
    promtool("check", "rules", "--lint=all", "--lint-fatal", "rules.yml", where=place)
    promtool("test", "rules", "rules_test.yml", where=place)


def test_the_clusters_configuration_is_the_generated_one_with_a_name_and_a_slower_pace() -> None:
    ours, generated = load("cluster/prometheus.yml"), prometheus_document()
    assert ours["global"].pop("external_labels") == {"cluster": "east"}
    assert set(ours.pop("global")) == set(generated.pop("global"))
    assert ours == generated


# -- what leaves a cluster -----------------------------------------------------------------------------------


def wanted() -> set[str]:
    """Every series that the alerts look at or that is recorded."""
    read = {name for row in alert_rows(Parameters()) for name in metrics(row.expression)}
    return (read | set(ROWS)) - LEFT_OUT


def federated(name: str, labels: dict[str, str]) -> bool:
    """Whether one of the selectors of the federation takes this series."""
    (job,) = load("global/federation.yml")["scrape_configs"]
    for selector in job["params"]["match[]"]:
        metric, inside = re.fullmatch(r"(\w*)\{(.*)\}", selector).groups()  # type: ignore[union-attr]
        matchers = re.findall(r'(\w+)(=~?)"([^"]*)"', inside)
        named = {**labels, "__name__": name}
        fits = [
            re.fullmatch(value, named.get(key, "")) if sign == "=~" else named.get(key) == value
            for key, sign, value in matchers
        ]
        if all(fits) and metric in ("", name):
            return True
    return False


def sent(name: str, labels: dict[str, str]) -> bool:
    """Whether the relabelling of the remote-write lets this series through."""
    (target,) = load("cluster/remote-write.yml")["remote_write"]
    named = {**labels, "__name__": name}
    for step in target["write_relabel_configs"]:
        assert step["action"] == "keep"
        value = ";".join(named.get(label, "") for label in step["source_labels"])
        if not re.fullmatch(step["regex"], value):
            return False
    return True


@pytest.mark.parametrize("leaves", [federated, sent])
def test_what_is_recorded_and_what_alerts_look_at_leaves_the_cluster_and_no_more(leaves: Any) -> None:
    ours = {"job": "kvledger", "engine": "e"}
    assert [name for name in sorted(wanted()) if not leaves(name, ours)] == []
    assert leaves("ALERTS", {"alertname": "KvledgerBlockLeak", **ours})
    others = [
        ("up", {"job": "node"}),
        ("ALERTS", {"alertname": "NodeDown"}),
        ("ALERTS_FOR_STATE", {"alertname": "KvledgerBlockLeak"}),
        ("kvledger_requests_total", ours),
        ("kvledger_wait_seconds_bucket", ours),
        ("kvledger_time_to_first_token_seconds_bucket", ours),
        ("kvledger_tenant_blocks", ours),
        ("kvledger_oldest_wait_seconds", ours),
        ("go_goroutines", {"job": "kvledger"}),
    ]
    assert [name for name, labels in others if leaves(name, labels)] == []


def test_a_federated_series_keeps_the_labels_that_its_own_cluster_gave_it() -> None:
    (job,) = load("global/federation.yml")["scrape_configs"]
    assert job["honor_labels"] is True
    assert job["metrics_path"] == "/federate"
    clusters = [group["labels"]["cluster"] for group in load("global/targets/clusters.yml")]
    assert len(set(clusters)) == len(clusters) > 1


def test_the_global_ones_do_not_record_what_the_clusters_have_recorded() -> None:
    (group,) = load("global/rules.yml")["groups"]
    assert [sorted(rule) for rule in group["rules"]] == [["alert", "annotations", "expr", "for", "labels"]]


# -- vLLM ----------------------------------------------------------------------------------------------------


def flags(script: str) -> dict[str, str]:
    """The flags that a script starts vLLM with."""
    text = (FLEET / "vllm" / script).read_text().replace("\\\n", " ")
    return dict(re.findall(r"--([a-z-]+)(?: +(?!--)(\S+|\"[^\"]*\"))?", text.partition("vllm serve")[2]))


def test_the_machines_ranks_make_up_the_whole_engine_and_its_name_is_the_same_everywhere() -> None:
    head, worker = flags("head.sh"), flags("worker.sh")
    size = int(head["data-parallel-size"])
    ranks = [*range(int(head["data-parallel-size-local"]))]
    first = int(worker["data-parallel-start-rank"])
    ranks += range(first, first + int(worker["data-parallel-size-local"]))
    assert ranks == list(range(size))
    assert "headless" in worker
    assert head["data-parallel-rpc-port"] == worker["data-parallel-rpc-port"]
    exports = [
        re.findall(r"^export (KVLEDGER_\w+=\S+)", (FLEET / "vllm" / s).read_text(), re.M)
        for s in ("head.sh", "worker.sh")
    ]
    assert exports[0] == exports[1] == ["KVLEDGER_DIR=/dev/shm/kvledger", "KVLEDGER_ENGINE=chat"]


@pytest.mark.parametrize("script", ["head.sh", "worker.sh"])
def test_the_scripts_are_sound_for_bash(script: str) -> None:
    assert subprocess.run(["bash", "-n", str(FLEET / "vllm" / script)], capture_output=True).returncode == 0


# -- Kubernetes ----------------------------------------------------------------------------------------------


def pod(name: str) -> dict[str, Any]:
    """The pod of a manifest."""
    template: dict[str, Any] = load(f"kubernetes/{name}.yaml")["spec"]["template"]
    return template


def mount(container: dict[str, Any], name: str) -> dict[str, Any]:
    """A container's mount of a volume."""
    (found,) = (m for m in container["volumeMounts"] if m["name"] == name)
    return dict(found)


def variables(container: dict[str, Any]) -> dict[str, Any]:
    """A container's environment."""
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


def bytes_of(quantity: str) -> int:
    """A Kubernetes quantity such as `128Mi`."""
    number, unit = re.fullmatch(r"(\d+)([KMG])i", quantity).groups()  # type: ignore[union-attr]
    return int(number) << {"K": 10, "M": 20, "G": 30}[unit]


def test_engine_and_agent_share_a_bounded_memory_that_only_the_engine_can_write() -> None:
    spec = pod("sidecar")["spec"]
    (agent,), (engine,) = spec["initContainers"], spec["containers"]
    (ledgers,) = (v for v in spec["volumes"] if v["name"] == "ledgers")
    assert ledgers["emptyDir"]["medium"] == "Memory"
    room = bytes_of(ledgers["emptyDir"]["sizeLimit"])
    assert 3 * 32 * MIB <= room < bytes_of(engine["resources"]["limits"]["memory"]), "it is charged to the engine"
    assert spec["securityContext"]["fsGroup"] == GROUP
    read, written = mount(agent, "ledgers"), mount(engine, "ledgers")
    assert read["readOnly"] is True
    assert "readOnly" not in written
    assert variables(agent)["KVLEDGER_DIR"] == read["mountPath"]
    assert variables(engine)["KVLEDGER_DIR"] == written["mountPath"]
    assert variables(engine)["KVLEDGER_ENGINE"] == {"fieldRef": {"fieldPath": "metadata.name"}}


def test_no_engine_waits_for_its_agent_or_goes_out_of_service_with_it() -> None:
    (agent,) = pod("sidecar")["spec"]["initContainers"]
    assert agent["restartPolicy"] == "Always", "a native sidecar, no step before the engine"
    assert {"startupProbe", "readinessProbe"}.isdisjoint(agent)
    assert agent["livenessProbe"]["httpGet"]["path"] == "/healthz"


@pytest.mark.parametrize(("name", "kind"), [("sidecar", "initContainers"), ("node-agent", "containers")])
def test_the_agent_runs_as_in_its_image_and_can_write_nothing(name: str, kind: str) -> None:
    (agent,) = pod(name)["spec"][kind]
    security = agent["securityContext"]
    user = re.search(r"^USER (\d+):(\d+)$", (ROOT / "deploy" / "agent.Dockerfile").read_text(), re.M)
    assert user is not None
    assert (security["runAsUser"], security["runAsGroup"]) == (int(user[1]), int(user[2]))
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert mount(agent, "ledgers")["readOnly"] is True
    assert "limits" in agent["resources"]
    assert {"hostPID", "hostNetwork", "shareProcessNamespace"}.isdisjoint(pod(name)["spec"]), "no agent needs these"


def test_the_node_wide_agent_reads_the_directory_that_the_machine_prepares() -> None:
    spec = pod("node-agent")["spec"]
    (volume,) = spec["volumes"]
    lines = [s for s in (FLEET / "kubernetes/tmpfiles.conf").read_text().splitlines() if not s.startswith("#")]
    assert [line.split() for line in lines] == [["d", volume["hostPath"]["path"], "3770", "root", str(GROUP), "-"]]
    assert volume["hostPath"]["type"] == "Directory"
    assert spec["securityContext"]["supplementalGroups"] == [GROUP]


@pytest.mark.parametrize(("name", "kind"), [("sidecar", "initContainers"), ("node-agent", "containers")])
def test_a_manifest_is_one_whose_pods_the_scrape_configuration_finds(name: str, kind: str) -> None:
    manifest = load(f"kubernetes/{name}.yaml")
    labels = manifest["spec"]["template"]["metadata"]["labels"]
    assert manifest["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (job,) = load("kubernetes/scrape.yml")["scrape_configs"]
    ((selector,),) = (config["selectors"] for config in job["kubernetes_sd_configs"])
    key, _, value = selector["label"].partition("=")
    assert labels[key] == value
    (agent,) = manifest["spec"]["template"]["spec"][kind]
    assert [(p["name"], p["containerPort"]) for p in agent["ports"]] == [("kvledger", 9470)]
    assert job["job_name"] == "kvledger", "the name that the rules ask for"


DISCOVERED = [
    ("10.0.0.1:9470", {"container_port_name": "kvledger", "phase": "Running", "name": "vllm-0"}),
    ("10.0.0.1:8000", {"container_port_name": "http", "phase": "Running", "name": "vllm-0"}),
    ("10.0.0.2:9470", {"container_port_name": "kvledger", "phase": "Succeeded", "name": "vllm-old"}),
]


@pytest.mark.needs("promtool")
def test_a_pods_agent_is_scraped_once_under_the_pods_name_and_what_has_ended_is_not(tmp_path: Path) -> None:
    document = load("kubernetes/scrape.yml")
    (job,) = document["scrape_configs"]
    # Debian's Prometheus is built without Kubernetes: what it would discover is given as a file.
    del job["kubernetes_sd_configs"]
    job["file_sd_configs"] = [{"files": ["pods.yml"]}]
    pods = [
        {
            "targets": [address],
            "labels": {
                "__meta_kubernetes_namespace": "ml",
                "__meta_kubernetes_pod_node_name": "gpu-a",
                **{f"__meta_kubernetes_pod_{key}": value for key, value in found.items()},
            },
        }
        for address, found in DISCOVERED
    ]
    (tmp_path / "pods.yml").write_text(yaml.safe_dump(pods))
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(document))

    promtool("check", "config", "prometheus.yml", where=tmp_path)
    done = subprocess.run(
        ["promtool", "check", "service-discovery", "--timeout=1s", "prometheus.yml", "kvledger"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    kept = [found["labels"] for found in json.loads(done.stdout) if found["labels"]]
    assert [(t["__address__"], t["instance"], t["node"], t["job"]) for t in kept] == [
        ("10.0.0.1:9470", "ml/vllm-0", "gpu-a", "kvledger")
    ]


# -- the page ------------------------------------------------------------------------------------------------


def test_the_page_quotes_the_files_as_they_are() -> None:
    page = PAGE.read_text()
    quoted = re.findall(r"^`deploy/fleet/([\w./-]+)`:\n\n```\w+\n(.*?)^```$", page, re.M | re.S)
    assert {name for name, _ in quoted} >= {
        "cluster/prometheus.yml", "cluster/remote-write.yml", "global/federation.yml", "global/receiver.yml",
        "vllm/head.sh", "vllm/worker.sh",
    }  # fmt: skip
    for name, text in quoted:
        assert text == (FLEET / name).read_text(), name


def test_every_file_is_named_on_the_page() -> None:
    page = PAGE.read_text()
    for path in FLEET.rglob("*"):
        if path.is_file() and "targets" not in path.parts:
            assert f"{path.relative_to(FLEET)}" in page, path


def test_nothing_in_it_is_a_secret_or_an_address_of_the_world() -> None:
    for path in (p for p in FLEET.rglob("*") if p.is_file()):
        assert not re.search(r"password|bearer|token_file|https?://(?!global:|kvledger\.example)", path.read_text()), (
            path
        )
