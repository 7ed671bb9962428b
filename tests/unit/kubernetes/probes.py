"""Checks of what the kubelet does to containers: probes, ports, time to end, resources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.unit.kubernetes.objects import Container, Object, Objects, environment, pods, quantity

PATHS = {"startupProbe": "/readyz", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
DRAIN_S = 10.0  #: a service ends within, once it is told to
START_S = 60.0  #: at least, for a start on a slow node


def containers_have_probes(objects: Objects) -> Iterator[str]:
    """Three each, at paths that a service serves, on the port where it serves them."""
    for pod in pods(objects):
        for container in pod.containers:
            for kind, path in PATHS.items():
                probe = container.spec.get(kind)
                if probe is None:
                    yield f"{container.name}: has no {kind}"
                else:
                    yield from _probe(objects, container, kind, probe, path)


def _probe(objects: Objects, container: Container, kind: str, probe: Object, path: str) -> Iterator[str]:
    asked = probe.get("httpGet", {})
    if asked.get("path") != path:
        yield f"{container.name}: its {kind} asks {asked.get('path')}, expected {path}"
    port = asked.get("port")
    number = container.ports.get(port) if isinstance(port, str) else port
    if number not in container.ports.values():
        yield f"{container.name}: its {kind} asks port {port}, which it does not declare"
    environ = environment(container, objects)
    if str(number) != environ.get("BEAST_HEALTH__PORT"):
        yield (
            f"{container.name}: its {kind} asks port {number}, and its health page is on "
            f"{environ.get('BEAST_HEALTH__PORT')}"
        )
    if environ.get("BEAST_HEALTH__HOST") != "0.0.0.0":
        yield f"{container.name}: its health page is on {environ.get('BEAST_HEALTH__HOST')}, out of the kubelet's reach"


def probes_are_patient(objects: Objects) -> Iterator[str]:
    """A start may take a minute, and one slow answer kills nobody."""
    for pod in pods(objects):
        for container in pod.containers:
            start, live = container.spec.get("startupProbe", {}), container.spec.get("livenessProbe", {})
            if start.get("periodSeconds", 10) * start.get("failureThreshold", 3) < START_S:
                yield f"{container.name}: is killed before it had {START_S:.0f} s to start"
            if live.get("failureThreshold", 3) < 3:
                yield f"{container.name}: is killed after {live['failureThreshold']} failures to answer"


def sidecars_keep_running(objects: Objects) -> Iterator[str]:
    """An init container that ends is none of ours; one that does not would keep the others waiting."""
    for pod in pods(objects):
        for container in pod.containers:
            if container.starts_first and container.spec.get("restartPolicy") != "Always":
                yield f"{container.name}: the pod would wait for its end"


def ports_are_unique(objects: Objects) -> Iterator[str]:
    """All containers of a pod share one network; names of ports are looked up in all of them."""
    for pod in pods(objects):
        ports = [port for container in pod.containers for port in container.spec.get("ports", [])]
        for key in ("containerPort", "name"):
            for value, count in Counter(port.get(key) for port in ports).items():
                if count > 1:
                    yield f"{pod.name}: {key} {value} stands {count} times"


def pods_may_end(objects: Objects) -> Iterator[str]:
    """The time to end covers the drain, once over."""
    for pod in pods(objects):
        if pod.spec.get("terminationGracePeriodSeconds", 30) < 2 * DRAIN_S:
            yield f"{pod.name}: is killed {pod.spec['terminationGracePeriodSeconds']} s after it is told to end"


def resources_are_stated(objects: Objects) -> Iterator[str]:
    """Requests and limits of CPU and memory, the first not above the second."""
    for pod in pods(objects):
        for container in pod.containers:
            resources = container.spec.get("resources", {})
            for name in ("cpu", "memory"):
                asked, most = resources.get("requests", {}).get(name), resources.get("limits", {}).get(name)
                if asked is None or most is None:
                    yield f"{container.name}: has no request or no limit of {name}"
                elif quantity(asked) > quantity(most):
                    yield f"{container.name}: requests {asked} of {name}, above its limit of {most}"


CHECKS = (
    containers_have_probes,
    probes_are_patient,
    sidecars_keep_running,
    ports_are_unique,
    pods_may_end,
    resources_are_stated,
)
