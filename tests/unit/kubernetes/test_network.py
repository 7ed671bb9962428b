"""Endpoints lead to their servers, and the network policies admit the planes of docs/protocol.md and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tests.unit.kubernetes.manifests import Container, Object, Rendered, matches, needs_kubectl
from zerobeast.common.endpoints import Endpoint
from zerobeast.common.process.roles import EVALUATOR

pytestmark = needs_kubectl

REQUESTS, REPLIES, WEIGHTS = 0, 1, 2  #: sockets of a server, on consecutive ports
#: (client, server) -> sockets that the client connects to; section 1 of docs/protocol.md
PLANES = {
    ("actor", "envserver"): (REQUESTS, REPLIES),
    ("evaluator", "envserver"): (REQUESTS, REPLIES),
    ("actor", "broker"): (REQUESTS, REPLIES),
    ("actor", "learner"): (REQUESTS, REPLIES),
    ("broker", "learner"): (WEIGHTS,),
}


class Peer(NamedTuple):
    """One end of a connection as a policy sees it."""

    name: str
    labels: Mapping[str, str]
    namespace: Mapping[str, str] | None = None  #: its labels; None: the run's own namespace
    ports: tuple[int, ...] = ()


class Link(NamedTuple):
    """A connection; the port is the server's."""

    client: str
    server: str
    port: int
    protocol: str = "TCP"


def endpoint(container: Container, role: str) -> Endpoint:
    """The endpoint at which a container reaches the server of a role, or is that server."""
    if container.process == EVALUATOR:
        return Endpoint.parse(container.flags[container.flags.index("--env_server") + 1])
    return Endpoint.parse(container.environ[f"BEAST_{role.upper()}__ENDPOINT"])


def servers(container: Container) -> dict[str, tuple[int, ...]]:
    """The servers outside a container that its services connect to, and the sockets of each."""
    found: dict[str, tuple[int, ...]] = {}
    for (client, server), sockets in PLANES.items():
        if client in container.roles and server not in container.roles:
            found[server] = found.get(server, ()) + sockets
    return found


def service(place: Endpoint) -> str:
    """The service that an endpoint belongs to: its own name, or that of a pod, as in learner-0.learner."""
    return place.host.rpartition(".")[2]


def links(run: Rendered) -> set[Link]:
    """The connections of the services over the network; ranks of a learner connect to each other at any port."""
    learner = next(pod for pod in run.pods if pod.name == "learner")
    between = {Link("learner", "learner", port) for port in learner.ports.values() if learner.owner["replicas"] > 1}
    return between | {
        Link(pod.name, service(endpoint(container, server)), endpoint(container, server).port + socket)
        for pod in run.pods
        for container in pod.containers
        for server, sockets in servers(container).items()
        for socket in sockets
        if not endpoint(container, server).path
    }


def peers(run: Rendered) -> list[Peer]:
    """The pods of the run."""
    return [Peer(pod.name, pod.labels, ports=tuple(pod.ports.values())) for pod in run.pods]


def admitted(policies: Iterable[Object], direction: str, subject: Peer, other: Peer, port: int, protocol: str) -> bool:
    """Whether policies let a connection pass; `direction` is as `subject` sees it, `port` is at the receiving end."""
    specs = [policy["spec"] for policy in policies]
    ours = [s for s in specs if direction in s["policyTypes"] and matches(s["podSelector"], subject.labels)]
    if not ours:
        return True
    side = "from" if direction == "Ingress" else "to"
    for rule in (rule for spec in ours for rule in spec.get(direction.lower(), [])):
        ports = [(entry.get("protocol", "TCP"), entry["port"]) for entry in rule.get("ports", [])]
        if ports and (protocol, port) not in ports:
            continue
        if not rule.get(side) or any(_admits(entry, other) for entry in rule[side]):
            return True
    return False


def _admits(entry: Object, other: Peer) -> bool:
    if "namespaceSelector" in entry:
        here = matches(entry["namespaceSelector"], other.namespace or {})
    else:
        here = other.namespace is None
    return here and matches(entry.get("podSelector"), other.labels)


STRANGER = Peer("stranger of the namespace", {"app": "stranger"})
FOREIGNER = Peer("stranger of another namespace", {"app": "stranger"}, {})
MONITOR = Peer("monitoring", {}, {"zerobeast/monitoring": "true"})
NAMES, HTTPS = 53, 443


def test_every_endpoint_leads_to_its_server(run: Rendered) -> None:
    for ours, server in [(each, server) for each in run.containers.values() for server in servers(each)]:
        place = endpoint(ours, server)
        (pod,) = (
            [pod for pod in run.pods if ours in pod.containers]
            if place.path
            else run.selected({"matchLabels": run.names("Service")[service(place)]["spec"]["selector"]})
        )
        (theirs,) = (each for each in pod.containers if server in each.roles)
        if place.path:
            folder = place.path.rpartition("/")[0]
            assert endpoint(theirs, server) == place
            assert ours.mounts[folder]["name"] == theirs.mounts[folder]["name"]
        else:
            assert theirs.environ[f"BEAST_{server.upper()}__ENDPOINT"] == f"tcp://*:{place.port}"
    for link in links(run) - {link for link in links(run) if link.client == link.server}:
        assert link.port in [port["port"] for port in run.names("Service")[link.server]["spec"]["ports"]]


def test_policies_admit_planes_dns_and_scraping_and_nothing_else(run: Rendered) -> None:
    policies, pods = run.of_kind("NetworkPolicy"), peers(run)
    entering = {
        Link(client.name, pod.name, port)
        for pod in pods
        for port in pod.ports
        for client in (*pods, STRANGER, FOREIGNER, MONITOR)
        if admitted(policies, "Ingress", pod, client, port, "TCP")
    }
    places = [(pod, port, "TCP") for pod in pods for port in pod.ports]
    places += [(FOREIGNER, NAMES, "UDP"), (FOREIGNER, NAMES, "TCP")]
    places += [(client, HTTPS, "TCP") for client in (FOREIGNER, STRANGER)]
    leaving = {
        Link(pod.name, server.name, port, protocol)
        for pod in pods
        for server, port, protocol in places
        if admitted(policies, "Egress", pod, server, port, protocol)
    }
    pages = [(pod, port) for pod in run.pods for name, port in pod.ports.items() if name.startswith("health")]
    scraped = {Link(MONITOR.name, pod.name, port) for pod, port in pages}
    named = {Link(link.client, FOREIGNER.name, NAMES, protocol) for link in links(run) for protocol in ("UDP", "TCP")}
    assert (entering, leaving) == (links(run) | scraped, links(run) | named)
    assert all(run.selected(policy["spec"]["podSelector"]) for policy in policies)
