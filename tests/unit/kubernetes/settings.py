"""Checks of settings and images: what the program, docker-compose.yml and the Dockerfile say of the same things."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tests.unit.kubernetes.objects import Objects, arguments, environment, name_of, of_kind, pods
from tests.unit.kubernetes.render import ROOT
from zerobeast.common.config.layers import PREFIX
from zerobeast.common.config.load import gather
from zerobeast.common.config.process import ProcessFlags
from zerobeast.common.errors import ConfigError

DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
COMPOSE = ROOT / "docker-compose.yml"
INSECURE, KEYS = "BEAST_SECURITY__INSECURE", "BEAST_SECURITY__KEYS"
OWN_NAME = "BEAST_NAME"  #: a run here may be called something else than one under compose
PATIENCE = "BEAST_ACTOR__CONNECT_TIMEOUT_S"  #: how long an actor waits for its peers before it exits


def settings_are_real(objects: Objects) -> Iterator[str]:
    """The program itself reads each container's environment and arguments."""
    for pod in pods(objects):
        for container in pod.containers:
            flags, environ = arguments(container, objects), environment(container, objects)
            for mistake in _mistakes(tuple(flags), tuple(environ.items())):
                yield f"{container.name}: {mistake}"


@functools.cache
def _mistakes(flags: tuple[str, ...], environ: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    try:
        gather(flags, dict(environ), own=ProcessFlags)
    except ConfigError as error:
        return tuple(str(error).splitlines())
    return ()


def services_share_their_settings(objects: Objects) -> Iterator[str]:
    """All from one ConfigMap, whose name changes with its contents."""
    maps = {
        source["configMapRef"]["name"]
        for pod in pods(objects)
        for container in pod.containers
        for source in container.spec.get("envFrom", [])
    }
    for pod in pods(objects):
        for container in pod.containers:
            if not container.spec.get("envFrom"):
                yield f"{container.name}: does not read the settings of the run"
    for name in maps:
        if len(maps) > 1 or not re.fullmatch(r"run-[a-z0-9]{10}", name):
            yield f"ConfigMap {name}: expected one for all, called run-<hash>"


def images_are_built_here(objects: Objects) -> Iterator[str]:
    """zerobeast/<target> of deploy/docker/Dockerfile."""
    targets = dockerfile_targets()
    for pod in pods(objects):
        for container in pod.containers:
            name, _, tag = container.spec["image"].rpartition(":")
            if name.rpartition("/")[2] not in targets or not name.startswith("zerobeast/"):
                yield f"{container.name}: image {name} is no target of the Dockerfile, which has {', '.join(targets)}"
            if not re.fullmatch(r"latest(-cuda)?", tag):
                yield f"{container.name}: image {name} has the tag {tag}, expected latest or latest-cuda"


def run_settings_equal_composes(objects: Objects) -> Iterator[str]:
    """The same run, whether compose or Kubernetes starts it, but for its name, keys and servers in the client's pod.

    Nor need an actor be patient here: Kubernetes restarts it however often, Docker counts.
    """
    for config in of_kind(objects, "ConfigMap"):
        data = config["data"]
        for name, value in compose_settings().items():
            own = name in (OWN_NAME, PATIENCE) or str(data.get(name)).startswith("ipc://")
            own |= name == INSECURE and bool(data.get(KEYS))
            if not own and data.get(name) != value:
                yield f"{name_of(config)}: {name} is {data.get(name)}, docker-compose.yml has {value}"
        if not data.get(OWN_NAME):
            yield f"{name_of(config)}: the run has no name"


def dockerfile_targets() -> list[str]:
    """Roles that have an image."""
    stages: list[str] = re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
    return [stage for stage in stages if stage in ("learner", "broker", "envserver", "actor")]


@functools.cache
def compose_services() -> dict[str, Any]:
    """The services of docker-compose.yml."""
    return dict(yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"])


def compose_settings() -> dict[str, str]:
    """What compose gives to every service where the shell says nothing; a client's view of the endpoints."""
    actor: Mapping[str, Any] = compose_services()["actor"]["environment"]
    return {name: _default(str(value)) for name, value in actor.items() if name.startswith(PREFIX)}


def _default(text: str) -> str:
    """${BEAST_SEED:-1} as 1."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


CHECKS = (settings_are_real, services_share_their_settings, images_are_built_here, run_settings_equal_composes)
