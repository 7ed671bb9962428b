"""Services in containers of a compose project or in pods, each asked by the health command of its image.

Pages are not published, and containers come and go with `--scale`: Docker itself lists them. `kubectl` is used
with its own settings: a user who may list pods and use `kubectl exec` may look, and no network policy has to admit
anything.
"""

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

from zerobeast.common.errors import ConfigError, raise_as
from zerobeast.common.health.command import UNREACHABLE
from zerobeast.common.health.figures import ServiceView
from zerobeast.common.health.status import is_finished
from zerobeast.common.process.roles import PROCESSES, SERVICES_BY_PROCESS

ANSWER_LIMIT_S = 20.0
AT_ONCE = 8  #: containers asked at a time
LAST_LINE = 200  #: characters of a line on why a container cannot be asked or has ended
NAMESPACE = "zerobeast"  #: of deploy/kubernetes/base
PODS = (  #: of a run; one that failed or succeeded as a whole, such as an evicted one, is replaced, not restarted
    "--selector=app.kubernetes.io/part-of=zerobeast",
    "--field-selector=status.phase!=Failed,status.phase!=Succeeded",
)


def gather_views(
    look: Callable[[Any], list[ServiceView]], places: Sequence[Any], most: int = AT_ONCE
) -> list[ServiceView]:
    """The services at all these places, of which at most so many are asked at a time."""
    with ThreadPoolExecutor(most) as pool:
        return [view for views in pool.map(look, places) for view in views]


def ask_container(execute: Sequence[str], process: str, number: str) -> list[ServiceView]:
    """The services in a running container, as listed by its image's health command, which `execute` runs there.

    Args:
      execute: a command that runs another one in the container.
      process: a role, or `worker`.
      number: which one, for the names of its services.
    """
    try:
        answer = json.loads(
            read_output([*execute, "python", "-m", f"zerobeast.services.{process}", "health", "--json"])
        )
        pages = [service["page"] for service in answer["services"]]
        found = dict(zip(SERVICES_BY_PROCESS[process], pages, strict=True))
    except (ConfigError, ValueError, KeyError, TypeError) as error:
        return unreachable_views(process, number, f"cannot be asked: {error}")
    return [
        view
        for role, page in found.items()
        for view in (
            [ServiceView(f"{role} {number}", role, page)] if page else unreachable_views(role, number, "no answer")
        )
    ]


def unreachable_views(process: str, number: str, note: str, code: int | None = None) -> list[ServiceView]:
    """The services of a process that has ended, has not started or does not answer, and why: if it has ended, `note` is
    the last line of its log.
    """
    finished = code == 0 and is_finished(note)
    seen = partial(ServiceView, silent_s=UNREACHABLE, code=code, note=note[:LAST_LINE], finished=finished)
    return [seen(f"{role} {number}", role) for role in SERVICES_BY_PROCESS[process]]


def read_last_line(logs: Sequence[str]) -> str:
    """The last line in the log of a container that has ended; `logs` is the command that prints it."""
    try:
        return read_output(logs, errors=True).strip().rpartition("\n")[2]
    except ConfigError as error:
        return str(error)


def read_output(command: Sequence[str], *, errors: bool = False) -> str:
    """What a command prints; with `errors`, on standard error too.

    Raises:
      ConfigError: it is not installed, does not answer in time, or fails without printing anything.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_LIMIT_S, check=False)
    except FileNotFoundError as error:
        raise ConfigError(f"{command[0]} is not installed here") from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"{' '.join(command[:3])} did not answer in {ANSWER_LIMIT_S:.0f} s") from error
    if done.returncode and not done.stdout:
        why = done.stderr.strip().rpartition("\n")[2]  # kubectl prints what it tried first, and the reason last
        raise ConfigError(f"{' '.join(command[:3])}: {why[:LAST_LINE]}")
    return done.stdout + (done.stderr if errors else "")


def find_compose_services(project: Sequence[str] = ()) -> list[ServiceView]:
    """One view for every service in the containers of the project in this folder.

    Args:
      project: flags for `docker compose` that name another project.

    Raises:
      ConfigError: Docker cannot be asked, or has no such project.
    """
    listing = read_output(["docker", "compose", *project, "ps", "--all", "--format", "json"])
    containers = [entry for entry in _parse_listing(listing) if entry.get("Service") in PROCESSES]
    if not containers:
        raise ConfigError("no container of a compose project is running here: `docker compose up` starts one")
    containers.sort(key=lambda entry: (str(entry["Service"]), str(entry["Name"])))
    return gather_views(_container_views, containers)


def _parse_listing(listing: str) -> list[dict[str, Any]]:
    """Compose prints one list, or one object a line, depending on its version."""
    with raise_as(ConfigError, f"docker compose ps: expected JSON, got {listing[:LAST_LINE]!r}", ValueError):
        if listing.lstrip().startswith("["):
            return list(json.loads(listing))
        return [json.loads(line) for line in listing.splitlines() if line.strip()]


def _container_views(entry: dict[str, Any]) -> list[ServiceView]:
    process, container = str(entry["Service"]), str(entry["Name"])
    number = container.rpartition("-")[2]
    if entry.get("State") != "running":
        words = read_last_line(["docker", "logs", "--tail", "1", container])
        return unreachable_views(process, number, words, entry.get("ExitCode"))
    return ask_container(["docker", "exec", container], process, number)


class _Container(NamedTuple):
    """One container of a pod, named after its process: a role or `worker`."""

    process: str
    pod: str
    namespace: str
    state: dict[str, Any]  #: one key: running, waiting or terminated
    ended: dict[str, Any]  #: how it ended, now or before its last restart; empty: never
    unscheduled: str  #: why the pod has no node yet


def find_kubernetes_services(namespace: str = NAMESPACE) -> list[ServiceView]:
    """One view for every service in the pods of a namespace.

    Raises:
      ConfigError: the cluster cannot be asked, or has no pod of a run there.
    """
    listing = read_output(["kubectl", "get", "pods", "--namespace", namespace, *PODS, "--output", "json"])
    what = f"kubectl get pods: expected a list of pods, got {listing[:LAST_LINE]!r}"
    with raise_as(ConfigError, what, ValueError, LookupError, TypeError, AttributeError):
        containers = sorted(container for pod in json.loads(listing)["items"] for container in _containers(pod))
    if not containers:
        raise ConfigError(
            f"no pod of a run in namespace {namespace}: `kubectl apply -k` starts one, -n names another namespace"
        )
    return gather_views(_pod_views, containers)


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


def _pod_views(container: _Container) -> list[ServiceView]:
    process, pod, where = container.process, container.pod, ["--namespace", container.namespace]
    number = pod.rpartition("-")[2]
    if "running" in container.state:
        return ask_container(["kubectl", "exec", *where, pod, "--container", process, "--"], process, number)
    waiting = container.state.get("waiting", {})
    why = ": ".join(filter(None, (waiting.get("reason"), waiting.get("message")))) or container.unscheduled
    if container.ended:
        again = ["--previous"] if waiting else []
        why = read_last_line(["kubectl", "logs", *where, pod, "--container", process, "--tail", "1", *again]) or why
    return unreachable_views(process, number, why, container.ended.get("exitCode"))
