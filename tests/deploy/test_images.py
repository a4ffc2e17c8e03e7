"""The images: what is copied exists, what is installed is what the service needs, and the agent's has no torch."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path

import pytest
from aiohttp import web
from packaging.requirements import Requirement

from kvledger_agent.agent import Agent
from kvledger_agent.config import AgentConfig
from kvledger_agent.http import make_app
from kvledger_alerts.monitor.command import RUNBOOK_PORT
from kvledger_alerts.monitor.pages import page_named
from kvledger_alerts.table import Parameters
from kvledger_dashboards.links import Places
from kvledger_engine.quotas import Quotas
from kvledger_engine.server import CompletionServer
from tests.deploy.commands import PROJECT
from tests.deploy.compose import ROOT, Service, services
from tests.deploy.dockerfiles import Dockerfile, in_context
from tests.ports import free_port

OURS = {name: service for name, service in services().items() if service.is_ours}
EXTRAS = {"engine": {"engine"}, "agent": {"agent", "otlp"}, "explorer": {"explorer"}, "runbook": {"alerts"}}
WHEEL = {"pyproject.toml", "README.md", "LICENSE"}


def dockerfile(service: Service) -> Dockerfile:
    """The Dockerfile of a service of ours."""
    build = service.raw["build"]
    assert build["context"] == "."
    return Dockerfile(ROOT / build["dockerfile"])


def installed_with(extras: set[str]) -> set[str]:
    """Every distribution that comes with kvledger and these extras, as the installed packages' metadata tell it."""
    project = PROJECT["project"]
    asked = [Requirement(text) for text in project["dependencies"]]
    asked += [Requirement(text) for extra in extras for text in project["optional-dependencies"][extra]]
    seen: set[tuple[str, frozenset[str]]] = set()
    while asked:
        requirement = asked.pop()
        extras_of_it = frozenset({"", *requirement.extras})
        one = (requirement.name.lower().replace("_", "-"), extras_of_it)
        if one in seen:
            continue
        seen.add(one)
        try:
            needs = [Requirement(text) for text in metadata.requires(one[0]) or []]
        except metadata.PackageNotFoundError:  # for another system: not here, and not in the image either
            continue
        asked += [n for n in needs if n.marker is None or any(n.marker.evaluate({"extra": e}) for e in extras_of_it)]
    return {name for name, _ in seen}


# -- what is built ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OURS)
def test_what_is_copied_exists_and_reaches_the_build(name: str) -> None:
    file = dockerfile(OURS[name])
    copied = [source for copy in file.copied if copy.stage is None for source in copy.sources]
    assert [path for path in copied if not (ROOT / path).exists()] == []
    assert [path for path in copied if not in_context(path)] == []
    assert all(copy.stage in file.stages for copy in file.copied if copy.stage is not None)


@pytest.mark.parametrize("name", OURS)
def test_all_that_the_wheel_is_made_of_is_copied(name: str) -> None:
    copies = [copy for copy in dockerfile(OURS[name]).copied if copy.stage is None]
    # The contents of a folder are copied: its name has to be given again.
    assert all(c.target == c.sources[0] if (ROOT / c.sources[0]).is_dir() else c.target == "./" for c in copies)
    copied = {source for copy in copies for source in copy.sources}
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {Path(package).parts[0] for package in packages} | WHEEL | {"constraints.txt"} == copied


@pytest.mark.parametrize("path", [".git/config", ".env", "tests/conftest.py", "agent/kvledger_agent/__pycache__/x.pyc"])
def test_history_secrets_tests_and_caches_reach_no_image(path: str) -> None:
    assert not in_context(path)


@pytest.mark.parametrize("name", OURS)
def test_extras_are_the_projects_and_versions_are_the_tested_ones(name: str) -> None:
    file = dockerfile(OURS[name])
    assert file.extras == EXTRAS[name] <= PROJECT["project"]["optional-dependencies"].keys()
    installs = [run for run in file.all("RUN") if "pip install" in run]
    assert installs
    assert all("-c constraints.txt" in run for run in installs)


@pytest.mark.parametrize("name", OURS)
def test_the_base_is_one_exact_slim_python(name: str) -> None:
    assert set(dockerfile(OURS[name]).bases) == {"python:3.11.15-slim-bookworm"}


def test_torch_is_in_the_engines_image_alone() -> None:
    with_torch = {name for name, service in OURS.items() if "torch" in installed_with(dockerfile(service).extras)}
    assert with_torch == {"engine"}
    named = {name for name, service in OURS.items() if any("torch" in run for run in dockerfile(service).all("RUN"))}
    assert named == {"engine"}


def test_packages_that_come_with_packages_are_seen() -> None:
    assert {"aiohttp", "yarl", "numpy"} <= installed_with({"agent"})
    assert "torch" in installed_with({"engine"})


def test_torch_is_the_cpu_build_of_the_version_that_the_constraints_name() -> None:
    file = dockerfile(OURS["engine"])
    assert file.all("ARG") == ["TORCH_INDEX=https://download.pytorch.org/whl/cpu"]
    (install,) = (run for run in file.all("RUN") if run.endswith(" torch"))
    assert {"--no-deps", "--index-url"} <= set(install.split())
    assert '"${TORCH_INDEX}"' in install


@pytest.mark.parametrize("name", OURS)
def test_the_image_has_the_user_the_port_and_the_command_of_its_service(name: str) -> None:
    service, stage = OURS[name], dockerfile(OURS[name]).last_stage
    uid, gid = service.user
    assert stage["USER"] == f"{uid}:{gid}"
    assert f"--gid {gid} " in stage["RUN"]
    assert f"useradd --uid {uid} --gid {gid} " in stage["RUN"]
    assert stage["EXPOSE"] == str(service.probe.port)
    assert stage["ENTRYPOINT"] == '["kvledger"]'
    assert stage["CMD"].startswith(f'["{service.command[0]}"')


@pytest.mark.parametrize("name", OURS)
def test_the_virtual_environment_is_on_the_path_and_home_can_be_written(name: str) -> None:
    file = dockerfile(OURS[name])
    (venv,) = (copy for copy in file.copied if copy.stage is not None)
    assert venv.sources == [venv.target], "a virtual environment knows where it lies"
    assert file.environment["PATH"] == f"{venv.target}/bin:$PATH"
    assert file.environment["HOME"] in OURS[name].temporary


# -- health -----------------------------------------------------------------------------------------------------------


def routes(app: web.Application) -> set[str]:
    """Every path that an application serves."""
    return {resource.canonical for resource in app.router.resources()}


class _Bridge:
    """Enough of an engine's bridge to make the server's routes."""

    class hello:
        model, vocab_size, max_model_len_tokens = "m", 256, 128
        eos_token_ids, capacity_tokens, has_scores = (), 0, False
        block_size_tokens, quotas = 16, Quotas()


def test_the_engine_is_asked_for_a_path_that_it_serves() -> None:
    server = CompletionServer(_Bridge(), object())  # type: ignore[arg-type]  # routes need neither
    assert OURS["engine"].probe.path in routes(server.app)


def test_the_agent_is_asked_for_a_path_that_it_serves_and_that_says_whether_it_is_ready(tmp_path: Path) -> None:
    assert OURS["agent"].probe.path == "/readyz"
    with closing(Agent(AgentConfig(directory=tmp_path))) as agent:
        assert "/readyz" in routes(make_app(agent))


@pytest.mark.needs("streamlit")
def test_the_explorer_is_asked_for_a_path_that_it_serves() -> None:
    from streamlit.web.server.starlette.starlette_routes import create_health_routes

    served = {route.path for route in create_health_routes(None, None)}  # type: ignore[arg-type, attr-defined]
    assert OURS["explorer"].probe.path in served


def test_the_runbook_is_asked_for_a_page_that_it_serves_where_alerts_and_boards_link() -> None:
    assert page_named(OURS["runbook"].probe.path) is not None
    assert Parameters().runbook_base == Places().runbook == OURS["runbook"].probe.url
    (port,) = OURS["runbook"].ports
    assert port.published == RUNBOOK_PORT


@pytest.fixture(params=[200, 503])
def answering(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    """Port and status of a server that always answers the same."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(request.param)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing is printed."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1], request.param
        server.shutdown()
        thread.join()


def healthy(service: Service, port: int) -> bool:
    """What a service's health check says of a server on another port, past a proxy that does not exist."""
    command = [part.replace(f":{service.probe.port}/", f":{port}/") for part in service.probe.command]
    assert command[0] == "python"
    environment = {"http_proxy": "http://127.0.0.1:1"}
    done = subprocess.run([sys.executable, *command[1:]], env=environment, capture_output=True, timeout=30)
    return done.returncode == 0


@pytest.mark.parametrize("name", OURS)
def test_the_health_check_believes_200_only(name: str, answering: tuple[int, int]) -> None:
    port, status = answering
    assert healthy(OURS[name], port) == (status == 200)


@pytest.mark.parametrize("name", OURS)
def test_the_health_check_fails_where_nobody_listens(name: str) -> None:
    assert not healthy(OURS[name], free_port())
