"""What `kubectl kustomize` renders from deploy/kubernetes, and queries that several tests share. No cluster."""

from __future__ import annotations

import functools
import math
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from zerobeast.common.process.roles import SERVICES_BY_PROCESS

ROOT = Path(__file__).parents[3]
KUBERNETES = ROOT / "deploy" / "kubernetes"
README = (KUBERNETES / "README.md").read_text(encoding="utf-8")
#: of components, as in the README: those that change an object come before those that remove it, keys come last
ORDER = ("small", "gpu", "brokers", "ranks", "evaluator", "sidecar", "fused", "monitoring", "encrypted")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  #: the C loader is ten times as fast
FACTORS = {"m": 1e-3, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}

Object = dict[str, Any]


@dataclass(frozen=True)
class Container:
    """A container or sidecar of a pod, and the environment of its process."""

    process: str  #: a role, or "worker": the last part of its image's name
    spec: Object
    environ: dict[str, str]
    is_sidecar: bool

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles of its services."""
        return SERVICES_BY_PROCESS[self.process]

    @property
    def ports(self) -> dict[str, int]:
        """Declared ports by name."""
        return {port["name"]: port["containerPort"] for port in self.spec.get("ports", [])}

    @property
    def flags(self) -> list[str]:
        """Its arguments with $(VARIABLES) filled in."""
        filled = list(self.spec.get("args", []))
        for name, value in self.environ.items():
            filled = [part.replace(f"$({name})", value) for part in filled]
        return filled

    @property
    def mounts(self) -> dict[str, Object]:
        """Mounts by path."""
        return {mount["mountPath"]: mount for mount in self.spec.get("volumeMounts", [])}


@dataclass(frozen=True)
class Pod:
    """A pod template, named after its workload."""

    name: str
    owner: Object  #: spec of the workload
    labels: dict[str, str]
    spec: Object
    containers: tuple[Container, ...]

    @property
    def ports(self) -> dict[str, int]:
        """Declared ports of all containers by name."""
        return {name: port for container in self.containers for name, port in container.ports.items()}


class Rendered:
    """The objects of one overlay, which no test changes."""

    def __init__(self, objects: Iterable[Object]) -> None:
        self.objects = list(objects)
        self.pods = [self._pod(found) for found in self.of_kind("Deployment", "StatefulSet")]
        self.containers = {container.spec["name"]: container for pod in self.pods for container in pod.containers}

    def of_kind(self, *kinds: str) -> list[Object]:
        """Objects of some kinds, in order."""
        return [found for found in self.objects if found["kind"] in kinds]

    def names(self, kind: str) -> dict[str, Object]:
        """Objects of a kind by name; the name of a generated ConfigMap ends in a hash."""
        return {found["metadata"]["name"]: found for found in self.of_kind(kind)}

    def selected(self, selector: Mapping[str, Any]) -> list[Pod]:
        """The pods that a label selector matches."""
        return [pod for pod in self.pods if matches(selector, pod.labels)]

    def _pod(self, workload: Object) -> Pod:
        template = workload["spec"]["template"]
        name, labels, spec = workload["metadata"]["name"], template["metadata"]["labels"], template["spec"]
        sidecars = [self._container(each, is_sidecar=True) for each in spec.get("initContainers", [])]
        others = [self._container(each, is_sidecar=False) for each in spec["containers"]]
        return Pod(name, workload["spec"], labels, spec, (*sidecars, *others))

    def _container(self, spec: Object, *, is_sidecar: bool) -> Container:
        environ: dict[str, str] = {}
        for source in spec.get("envFrom", []):
            environ |= self.names("ConfigMap")[source["configMapRef"]["name"]]["data"]
        environ |= {entry["name"]: _value(entry, spec) for entry in spec.get("env", [])}
        return Container(spec["image"].rpartition("/")[2].partition(":")[0], spec, environ, is_sidecar)


def _value(entry: Object, spec: Object) -> str:
    if "value" in entry:
        return str(entry["value"])
    source = entry["valueFrom"]
    if resource := source.get("resourceFieldRef"):
        assert resource["containerName"] == spec["name"], "a limit of another container"
        group, _, name = resource["resource"].partition(".")
        return str(math.ceil(quantity(spec["resources"][group][name])))
    return "0" if "pod-index" in source["fieldRef"]["fieldPath"] else ""


def matches(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector, such as a policy's or a workload's, matches these labels."""
    rules = (selector or {}).get("matchExpressions", [])
    assert all(rule["operator"] == "In" for rule in rules), "no other operator is used here"
    wanted = (selector or {}).get("matchLabels", {})
    return wanted.items() <= labels.items() and all(labels.get(rule["key"]) in rule["values"] for rule in rules)


def quantity(text: object) -> float:
    """A quantity such as 250m or 2Gi as a number."""
    unit = next((unit for unit in FACTORS if str(text).endswith(unit)), "")
    return float(str(text).removesuffix(unit)) * FACTORS.get(unit, 1.0)


@functools.cache
def render(folder: str) -> Rendered:
    """The objects rendered from a folder, relative to deploy/kubernetes or absolute."""
    command = ["kubectl", "kustomize", str(KUBERNETES / folder)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, f"{folder}: {result.stderr}"
    assert not result.stderr, f"{folder}: {result.stderr}"  # warnings, such as about deprecated fields
    return Rendered(yaml.load_all(result.stdout, LOADER))


def render_own(folder: Path, components: Iterable[str] = (), **more: Any) -> Rendered:
    """Render a user's own overlay, in an empty folder outside the tree; kustomize takes relative paths only."""
    here = os.path.relpath(KUBERNETES, folder)
    parts = {"resources": [f"{here}/base"], "components": [f"{here}/components/{name}" for name in components]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(parts | more), encoding="utf-8")
    return render(str(folder))


WHY_NOT = "" if shutil.which("kubectl") else "kubectl is not installed"
needs_kubectl = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
