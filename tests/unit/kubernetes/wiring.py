"""Checks of references between objects: what one names, another has to be. Each yields sentences; none is good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.unit.kubernetes.objects import Object, Objects, Pod, find, matches, name_of, of_kind, pods

#: key of a volume or of a variable's source -> what it names
REFERENCES = {
    "configMap": "ConfigMap",
    "configMapRef": "ConfigMap",
    "configMapKeyRef": "ConfigMap",
    "secret": "Secret",
    "secretRef": "Secret",
    "secretKeyRef": "Secret",
}
#: what a person makes and no file may hold
YOURS = {f"zerobeast-{name}" for name in ("public-keys", "learner-key", "broker-key", "envserver-key", "actor-key")}


def names_are_unique(objects: Objects) -> Iterator[str]:
    """Two objects of one name would overwrite each other."""
    for name, count in Counter(map(name_of, objects)).items():
        if count > 1:
            yield f"{name}: stands {count} times"


def one_namespace(objects: Objects) -> Iterator[str]:
    """Everything is in one namespace, which is part of it."""
    spaces = of_kind(objects, "Namespace")
    names = {space["metadata"]["name"] for space in spaces}
    for found in objects:
        if found not in spaces and found["metadata"].get("namespace") not in names:
            yield f"{name_of(found)}: is in namespace {found['metadata'].get('namespace')}, which is not among these"


def labels_are_standard(objects: Objects) -> Iterator[str]:
    """name and part-of on everything, component on pods."""
    for found in objects:
        yield from _missing_labels(name_of(found), found["metadata"].get("labels", {}), ("name", "part-of"))
    for pod in pods(objects):
        yield from _missing_labels(f"{pod.name}, pod", pod.labels, ("name", "part-of", "component"))


def _missing_labels(name: str, labels: dict[str, str], wanted: tuple[str, ...]) -> Iterator[str]:
    for key in wanted:
        if not labels.get(f"app.kubernetes.io/{key}"):
            yield f"{name}: has no label app.kubernetes.io/{key}"


def workloads_select_their_pods(objects: Objects) -> Iterator[str]:
    """A workload's selector admits its own pods and nobody else's."""
    for pod in pods(objects):
        selector = pod.owner["spec"]["selector"]
        if not matches(selector, pod.labels):
            yield f"{pod.name}: its selector does not admit its own pods"
        for other in pods(objects):
            if other != pod and matches(selector, other.labels):
                yield f"{pod.name}: its selector admits the pods of {other.name}"
        for spread in pod.spec.get("topologySpreadConstraints", []):
            if not matches(spread["labelSelector"], pod.labels):
                yield f"{pod.name}: it spreads over nodes by labels that its pods do not have"


def services_reach_pods(objects: Objects) -> Iterator[str]:
    """A Service selects pods, and each of its ports is one of theirs."""
    for service in of_kind(objects, "Service"):
        chosen = [pod for pod in pods(objects) if matches({"matchLabels": service["spec"]["selector"]}, pod.labels)]
        if not chosen:
            yield f"{name_of(service)}: its selector admits no pod"
        for pod in chosen:
            for port in service["spec"]["ports"]:
                yield from _service_port(service, port, pod)


def _service_port(service: Object, port: Object, pod: Pod) -> Iterator[str]:
    target = port.get("targetPort", port["port"])
    number = pod.ports.get(target) if isinstance(target, str) else target
    if number not in pod.ports.values():
        yield f"{name_of(service)}: targetPort {target} is no port of {pod.name}"
    elif service["spec"].get("clusterIP") == "None" and port["port"] != number:
        yield (
            f"{name_of(service)}: port {port['port']} leads to {number} of {pod.name}, but a headless Service "
            f"translates no ports"
        )


def stateful_sets_have_their_service(objects: Objects) -> Iterator[str]:
    """The Service that names a StatefulSet's pods exists, is headless and selects them."""
    for pod in pods(objects):
        if pod.owner["kind"] != "StatefulSet":
            continue
        name = pod.owner["spec"].get("serviceName", "")
        service = find(objects, "Service", name)
        if service is None:
            yield f"{pod.name}: its Service {name} does not exist"
        elif service["spec"].get("clusterIP") != "None":
            yield f"{name_of(service)}: names the pods of {pod.name} and is not headless"
        elif not matches({"matchLabels": service["spec"]["selector"]}, pod.labels):
            yield f"{name_of(service)}: names the pods of {pod.name} and does not select them"


def configuration_exists(objects: Objects) -> Iterator[str]:
    """ConfigMaps and Secrets that pods read."""
    for pod in pods(objects):
        for kind, name in _configuration(pod):
            if find(objects, kind, name) is None and name not in YOURS:
                yield f"{pod.name}: {kind} {name} does not exist"


def _configuration(pod: Pod) -> Iterator[tuple[str, str]]:
    for source in _sources(pod):
        for key, kind in REFERENCES.items():
            if key in source:
                yield kind, source[key].get("name") or source[key]["secretName"]


def _sources(pod: Pod) -> Iterator[Object]:
    yield from pod.spec.get("volumes", [])
    for container in pod.containers:
        yield from container.spec.get("envFrom", [])
        for entry in container.spec.get("env", []):
            yield entry.get("valueFrom", {})


def limits_are_the_containers_own(objects: Objects) -> Iterator[str]:
    """A variable that repeats a limit repeats that of its own container, which states it."""
    for pod in pods(objects):
        for container in pod.containers:
            fields = [entry.get("valueFrom", {}).get("resourceFieldRef") for entry in container.spec.get("env", [])]
            for field in filter(None, fields):
                group, _, name = field["resource"].partition(".")
                if field.get("containerName") != container.spec["name"]:
                    yield f"{container.name}: reads {field['resource']} of {field.get('containerName')}"
                elif name not in container.spec.get("resources", {}).get(group, {}):
                    yield f"{container.name}: reads {field['resource']}, which it does not have"


def volumes_exist(objects: Objects) -> Iterator[str]:
    """What a container mounts the pod has, and what the pod has somebody mounts."""
    for pod in pods(objects):
        known = {volume["name"] for volume in pod.spec.get("volumes", [])}
        known |= {claim["metadata"]["name"] for claim in pod.owner["spec"].get("volumeClaimTemplates", [])}
        mounted = set()
        for container in pod.containers:
            for mount in container.spec.get("volumeMounts", []):
                mounted.add(mount["name"])
                if mount["name"] not in known:
                    yield f"{container.name}: mounts {mount['name']}, which is no volume of its pod"
        for name in sorted(known - mounted):
            yield f"{pod.name}: nobody mounts its volume {name}"
        for volume in pod.spec.get("volumes", []):
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim and find(objects, "PersistentVolumeClaim", claim) is None:
                yield f"{pod.name}: PersistentVolumeClaim {claim} does not exist"


def autoscalers_have_targets(objects: Objects) -> Iterator[str]:
    """An autoscaler's workload exists, leaves the number to it, and requests what it measures."""
    for scaler in of_kind(objects, "HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        workload = find(objects, target["kind"], target["name"])
        if workload is None:
            yield f"{name_of(scaler)}: {target['kind']} {target['name']} does not exist"
            continue
        if "replicas" in workload["spec"]:
            yield f"{name_of(workload)}: states replicas, which {name_of(scaler)} decides"
        for metric in scaler["spec"]["metrics"]:
            yield from _unmeasurable(scaler, metric, Pod(workload))


def _unmeasurable(scaler: Object, metric: dict[str, Any], pod: Pod) -> Iterator[str]:
    resource = metric["resource"]["name"]
    for container in pod.containers:
        if resource not in container.spec.get("resources", {}).get("requests", {}):
            yield f"{name_of(scaler)}: {container.name} requests no {resource}, of which a share is wanted"


def budgets_let_nodes_drain(objects: Objects) -> Iterator[str]:
    """A disruption budget selects one workload's pods, and one of them may always go."""
    for budget in of_kind(objects, "PodDisruptionBudget"):
        chosen = [pod for pod in pods(objects) if matches(budget["spec"]["selector"], pod.labels)]
        if len(chosen) != 1:
            yield f"{name_of(budget)}: selects the pods of {len(chosen)} workloads, expected one"
        if "minAvailable" in budget["spec"] or budget["spec"].get("maxUnavailable") in (0, "0%"):
            yield f"{name_of(budget)}: blocks every drain where there is one replica"


CHECKS = (
    names_are_unique,
    one_namespace,
    labels_are_standard,
    workloads_select_their_pods,
    services_reach_pods,
    stateful_sets_have_their_service,
    configuration_exists,
    limits_are_the_containers_own,
    volumes_exist,
    autoscalers_have_targets,
    budgets_let_nodes_drain,
)
