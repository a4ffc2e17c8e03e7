"""What a compose file of ours has to keep, rule by rule. A rule names what breaks it, and is silent otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from tests.deploy.compose import ROOT, Document, Service, services, texts

EXACT_TAG = re.compile(r"(?P<name>[a-z0-9./-]+):v?\d+\.\d+\.\d+(-[a-z0-9.-]+)?")
LOOPBACK = "127.0.0.1"


def hardening(document: Document) -> Iterator[str]:
    """Nobody is root, has a capability, gains one, or writes where nothing was given."""
    for name, service in services(document).items():
        raw = service.raw
        if service.user[0] == 0:
            yield f"{name}: runs as root"
        if raw.get("cap_drop") != ["ALL"] or raw.get("cap_add"):
            yield f"{name}: has capabilities"
        if "no-new-privileges:true" not in raw.get("security_opt", []):
            yield f"{name}: may gain privileges"
        if raw.get("read_only") is not True:
            yield f"{name}: its root file system can be written"
        if "size=" not in service.temporary.get("/tmp", ""):
            yield f"{name}: /tmp is not a tmpfs of a stated size"
        forbidden = raw.keys() & {"privileged", "pid", "ipc", "network_mode", "devices", "userns_mode", "env_file"}
        yield from (f"{name}: {key} is set" for key in sorted(forbidden))


def images(document: Document) -> Iterator[str]:
    """Every image has an exact tag."""
    for name, service in services(document).items():
        if not EXACT_TAG.fullmatch(str(service.raw.get("image"))):
            yield f"{name}: {service.raw.get('image')} is no exact tag"


def ports(document: Document) -> Iterator[str]:
    """Every published port is on loopback, is published once, and is the one that the health check asks."""
    taken: dict[int, str] = {}
    for name, service in services(document).items():
        for port in service.ports:
            if port.host != LOOPBACK:
                yield f"{name}: {port.published} is open to {port.host}"
            if other := taken.get(port.published):
                yield f"{name}: {port.published} is published by {other}, too"
            taken[port.published] = name
            if port.target != service.probe.port:
                yield f"{name}: {port.target} is published, {service.probe.port} is asked for health"


def health(document: Document) -> Iterator[str]:
    """Every service has a health check that asks itself, with limits; who waits for another waits for its health."""
    everyone = services(document)
    for name, service in everyone.items():
        check = service.raw.get("healthcheck", {})
        if missing := {"test", "interval", "timeout", "retries", "start_period"} - check.keys():
            yield f"{name}: its health check lacks {sorted(missing)}"
            continue
        if not service.probe.url.startswith(f"http://{LOOPBACK}:"):
            yield f"{name}: its health check asks {service.probe.url}"
        if "curl" in service.probe.command:
            yield f"{name}: no image of these has curl for sure"
        for other, how in service.raw.get("depends_on", {}).items():
            if other not in everyone:
                yield f"{name}: waits for {other}, which is no service"
            if how != {"condition": "service_healthy"}:
                yield f"{name}: does not wait until {other} is healthy"


def mounts(document: Document) -> Iterator[str]:
    """Every mounted path is in the repository and read-only, every volume is declared, nothing is mounted twice."""
    declared = document.get("volumes", {})
    for name, service in services(document).items():
        targets = [mount.target for mount in service.mounts]
        yield from (f"{name}: {target} is mounted twice" for target in {t for t in targets if targets.count(t) > 1})
        for mount in service.mounts:
            if mount.kind == "volume":
                if mount.source not in declared:
                    yield f"{name}: volume {mount.source} is not declared"
                continue
            if not mount.host_path.exists():
                yield f"{name}: {mount.source} does not exist"
            if is_ignored(mount.host_path):
                yield f"{name}: {mount.source} is ignored by git, so nobody else has it"
            if not mount.read_only:
                yield f"{name}: {mount.source} can be written"
            if not mount.needs_source:
                yield f"{name}: a missing {mount.source} would become an empty directory"
    used = {mount.source for service in services(document).values() for mount in service.mounts}
    yield from (f"volume {volume} is not used" for volume in sorted(declared.keys() - used))


def form(document: Document) -> Iterator[str]:
    """The current compose format, no secret in it, and no variable but the one that a person has to give."""
    if "version" in document:
        yield "version: is obsolete"
    if not document.get("name"):
        yield "the project has no name, so volumes and networks have the folder's"
    for text in texts(document):
        for variable in re.findall(r"\$\{?(\w+)", text.replace("$$", "")):
            if not (variable == "GRAFANA_ADMIN_PASSWORD" and f"${{{variable}:?" in text):
                yield f"${variable} is used in {text!r}"
    for name, service in services(document).items():
        for variable, value in service.environment.items():
            if re.search("PASSWORD|SECRET|TOKEN|KEY", variable) and not value.startswith("${"):
                yield f"{name}: {variable} is written down"


def is_ignored(path: Path) -> bool:
    """Whether .gitignore, in the simple forms it uses, leaves a path of the repository out."""
    patterns = [line for line in (ROOT / ".gitignore").read_text().splitlines() if line and not line.startswith("#")]
    assert not [p for p in patterns if "/" in p.rstrip("/") or p.startswith("!")], "a form this function does not read"
    return any(fnmatch(part, p.rstrip("/")) for p in patterns for part in path.relative_to(ROOT).parts)


def sibling(service: Service, document: Document, url: str) -> str | None:
    """What is wrong with an address of another service, `HOST:PORT` in `url`; None if it listens there."""
    host, _, port = url.removeprefix("http://").partition(":")
    other = services(document).get(host)
    if other is None:
        return f"{service.name}: {url} names no service"
    return None if other.probe.port == int(port) else f"{service.name}: {host} does not listen on {port}"
