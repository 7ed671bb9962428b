"""Kubernetes objects as YAML has them, and the questions that several checks ask of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
Objects = Sequence[Object]

COMPONENT = "app.kubernetes.io/component"
FACTORS = {"m": 1e-3, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}


@dataclass(frozen=True)
class Container:
    """A container of a pod template.

    Attributes:
      owner: the workload, as "Deployment actor".
      spec: as in the template.
      starts_first: whether it is a sidecar, an init container that keeps running.
    """

    owner: str
    spec: Object
    starts_first: bool

    @property
    def name(self) -> str:
        """For sentences."""
        return f"{self.owner}, container {self.spec['name']}"

    @property
    def ports(self) -> dict[str, int]:
        """Declared ports by name."""
        return {str(port.get("name", "")): int(port["containerPort"]) for port in self.spec.get("ports", [])}

    @property
    def role(self) -> str:
        """Which of the four services it is: the last part of its image's name."""
        return str(self.spec["image"]).rpartition("/")[2].partition(":")[0]


@dataclass(frozen=True)
class Pod:
    """A pod template and the workload that it belongs to."""

    owner: Object

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def name(self) -> str:
        """For sentences."""
        return name_of(self.owner)

    @property
    def labels(self) -> dict[str, str]:
        """Of the pods."""
        return dict(self.owner["spec"]["template"]["metadata"].get("labels", {}))

    @property
    def spec(self) -> Object:
        """Of the pods."""
        return dict(self.owner["spec"]["template"]["spec"])

    @property
    def containers(self) -> list[Container]:
        """Those that run as long as the pod does, sidecars first."""
        sidecars = [Container(self.name, spec, starts_first=True) for spec in self.spec.get("initContainers", [])]
        return sidecars + [Container(self.name, spec, starts_first=False) for spec in self.spec["containers"]]

    @property
    def ports(self) -> dict[str, int]:
        """Declared ports of all containers by name."""
        return {name: port for container in self.containers for name, port in container.ports.items()}


def name_of(found: Object) -> str:
    """Such as "Service broker"."""
    return f"{found['kind']} {found['metadata']['name']}"


def of_kind(objects: Objects, *kinds: str) -> list[Object]:
    """Objects of some kinds, in order."""
    return [found for found in objects if found["kind"] in kinds]


def find(objects: Objects, kind: str, name: str) -> Object | None:
    """The object of that kind and name."""
    return next((found for found in of_kind(objects, kind) if found["metadata"]["name"] == name), None)


def pods(objects: Objects) -> list[Pod]:
    """The pod templates of all workloads."""
    return [Pod(found) for found in of_kind(objects, "Deployment", "StatefulSet")]


def matches(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector, as policies and workloads have one, admits these labels."""
    wanted = (selector or {}).get("matchLabels", {})
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    for rule in (selector or {}).get("matchExpressions", []):
        assert rule["operator"] == "In", f"operator {rule['operator']} is not used here"
        if labels.get(rule["key"]) not in rule["values"]:
            return False
    return True


def environment(container: Container, objects: Objects) -> dict[str, str]:
    """What the container's process sees: ConfigMaps, then its own variables. The pod is the first of its workload."""
    seen: dict[str, str] = {}
    for source in container.spec.get("envFrom", []):
        config = find(objects, "ConfigMap", source["configMapRef"]["name"])
        seen |= config["data"] if config else {}
    seen |= {entry["name"]: _value(entry, container) for entry in container.spec.get("env", [])}
    return seen


def arguments(container: Container, objects: Objects) -> list[str]:
    """The arguments with $(VARIABLES) filled in."""
    seen = environment(container, objects)
    filled = list(container.spec.get("args", []))
    for name, value in seen.items():
        filled = [part.replace(f"$({name})", value) for part in filled]
    return filled


def quantity(text: object) -> float:
    """A quantity such as 250m or 2Gi as a number."""
    plain = str(text)
    unit = next((unit for unit in FACTORS if plain.endswith(unit)), "")
    return float(plain.removesuffix(unit)) * FACTORS.get(unit, 1.0)


def client_endpoints(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(role, endpoint) of every server that the settings name."""
    for role in ("envserver", "broker", "learner"):
        yield role, environ.get(f"BEAST_{role.upper()}__ENDPOINT", "")


def _value(entry: Object, container: Container) -> str:
    if "value" in entry:
        return str(entry["value"])
    source = entry["valueFrom"]
    if resource := source.get("resourceFieldRef"):
        group, _, name = resource["resource"].partition(".")
        return str(math.ceil(quantity(container.spec["resources"].get(group, {}).get(name, 0))))
    return "0" if "pod-index" in source["fieldRef"]["fieldPath"] else ""
