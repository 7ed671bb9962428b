"""The pods of a run in a namespace, each container queried with the health command of its image.

It uses `kubectl` with its own settings: a user who may list pods and use `kubectl exec` may look, and no network policy
has to admit anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from zerobeast.common.errors import ConfigError
from zerobeast.common.health.views import ServiceView
from zerobeast.common.process.roles import PROCESSES
from zerobeast.discovery.containers import LAST_LINE, ask, gather, last_words, output, unreachable

NAMESPACE = "zerobeast"  #: of deploy/kubernetes/base
PODS = (  #: of a run; one that failed or succeeded as a whole, such as an evicted one, is replaced, not restarted
    "--selector=app.kubernetes.io/part-of=zerobeast",
    "--field-selector=status.phase!=Failed,status.phase!=Succeeded",
)


class _Container(NamedTuple):
    """One container of a pod, named after its process: a role or `worker`."""

    process: str
    pod: str
    namespace: str
    state: dict[str, Any]  #: one key: running, waiting or terminated
    ended: dict[str, Any]  #: how it ended, now or before its last restart; empty: never
    unscheduled: str  #: why the pod has no node yet


def services_of(namespace: str = NAMESPACE) -> list[ServiceView]:
    """One view for every service in the pods of a namespace.

    Raises:
      ConfigError: the cluster cannot be asked, or has no pod of a run there.
    """
    listing = output(["kubectl", "get", "pods", "--namespace", namespace, *PODS, "--output", "json"])
    try:
        pods = json.loads(listing)["items"]
        containers = sorted(container for pod in pods for container in _containers(pod))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"kubectl get pods: expected a list of pods, got {listing[:LAST_LINE]!r}") from error
    if not containers:
        raise ConfigError(f"no pod of a run in namespace {namespace}: `kubectl apply -k` starts one, -n names another")
    return gather(_views, containers)


def _containers(pod: dict[str, Any]) -> Iterator[_Container]:
    """The containers of a pod, including an env-server beside an actor; none has a status before the pod has a node."""
    named, status = pod["metadata"], pod["status"]
    reported = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    statuses = {each["name"]: each for each in reported}
    scheduling = [each.get("message", "") for each in status.get("conditions", []) if each["type"] == "PodScheduled"]
    for spec in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]:
        if spec["name"] in PROCESSES:
            found = statuses.get(spec["name"], {})
            state, before = found.get("state", {}), found.get("lastState", {})
            ended = state.get("terminated") or before.get("terminated") or {}
            yield _Container(
                spec["name"], named["name"], named["namespace"], state, ended, unscheduled="".join(scheduling)
            )


def _views(container: _Container) -> list[ServiceView]:
    process, pod, where = container.process, container.pod, ["--namespace", container.namespace]
    number = pod.rpartition("-")[2]
    if "running" in container.state:
        return ask(["kubectl", "exec", *where, pod, "--container", process, "--"], process, number)
    waiting = container.state.get("waiting", {})
    why = ": ".join(filter(None, (waiting.get("reason"), waiting.get("message")))) or container.unscheduled
    if container.ended:
        again = ["--previous"] if waiting else []
        why = last_words(["kubectl", "logs", *where, pod, "--container", process, "--tail", "1", *again]) or why
    return unreachable(process, number, why, container.ended.get("exitCode"))
