"""Checks of who may talk to whom: exactly the planes of docs/protocol.md, in both directions, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tests.unit.kubernetes.objects import (
    Container,
    Object,
    Objects,
    Pod,
    client_endpoints,
    environment,
    find,
    matches,
    name_of,
    of_kind,
    pods,
)
from zerobeast.common.errors import ConfigError
from zerobeast.common.runtime.endpoints import Endpoint

REQUESTS, REPLIES, WEIGHTS = 0, 1, 2  #: sockets of a server, one port apart
#: (client, server) -> sockets that it connects to; section 1 of docs/protocol.md
PLANES = {
    ("actor", "envserver"): (REQUESTS, REPLIES),
    ("actor", "broker"): (REQUESTS, REPLIES),
    ("actor", "learner"): (REQUESTS, REPLIES),
    ("broker", "learner"): (WEIGHTS,),
}
NAMES, HTTPS = 53, 443
MONITORING = {"zerobeast/monitoring": "true"}
STRANGER: dict[str, str] = {"app": "stranger"}


class Link(NamedTuple):
    """A connection that a service makes over the network."""

    client: Pod
    server: Pod
    port: int


def clients_find_servers(objects: Objects) -> Iterator[str]:
    """Every endpoint leads to a Service, or a socket in the same pod, behind which its server listens."""
    for pod in pods(objects):
        for container in pod.containers:
            for role, text in client_endpoints(environment(container, objects)):
                if (container.role, role) in PLANES:
                    yield from _endpoint(objects, pod, container, role, text)


def _endpoint(objects: Objects, pod: Pod, container: Container, role: str, text: str) -> Iterator[str]:
    try:
        place = Endpoint.parse(text)
    except ConfigError as error:
        yield f"{container.name}: {error}"
        return
    if place.path:
        yield from _unix_socket(objects, pod, container, role, text)
        return
    service = find(objects, "Service", place.host)
    if service is None:
        yield f"{container.name}: connects to {text}, and there is no Service {place.host}"
        return
    for socket in PLANES[container.role, role]:
        if place.port + socket not in [port["port"] for port in service["spec"]["ports"]]:
            yield f"{name_of(service)}: has no port {place.port + socket}, to which {container.name} connects"
    servers = [pod for pod in pods(objects) if matches({"matchLabels": service["spec"]["selector"]}, pod.labels)]
    if not any(_binds(objects, server, role, place.port) for server in servers):
        yield f"{name_of(service)}: no {role} listens at port {place.port}, to which {container.name} connects"


def _binds(objects: Objects, pod: Pod, role: str, port: int) -> bool:
    """Whether a server of the role binds and declares the ports from `port` on."""
    for container in pod.containers:
        place = environment(container, objects).get(f"BEAST_{role.upper()}__ENDPOINT")
        needed = {port + socket for (_, server), sockets in PLANES.items() if server == role for socket in sockets}
        if container.role == role and place == f"tcp://*:{port}" and needed <= set(container.ports.values()):
            return True
    return False


def _unix_socket(objects: Objects, pod: Pod, client: Container, role: str, text: str) -> Iterator[str]:
    servers = [container for container in pod.containers if container.role == role]
    if not any(environment(server, objects).get(f"BEAST_{role.upper()}__ENDPOINT") == text for server in servers):
        yield f"{client.name}: connects to {text}, where no {role} of its pod listens"
    folder = Endpoint.parse(text).path.rpartition("/")[0]
    for container in [client, *servers]:
        if folder not in [mount["mountPath"] for mount in container.spec.get("volumeMounts", [])]:
            yield f"{container.name}: does not mount {folder}, where the socket {text} is"


def links(objects: Objects) -> Iterator[Link]:
    """What the services connect to over the network, by their settings."""
    by_role = {container.role: pod for pod in pods(objects) for container in pod.containers}
    for pod in pods(objects):
        for container in pod.containers:
            for role, text in client_endpoints(environment(container, objects)):
                sockets = PLANES.get((container.role, role), ())
                if not text.startswith("tcp://") or role not in by_role:
                    continue
                for socket in sockets:
                    yield Link(pod, by_role[role], Endpoint.parse(text).port + socket)


def policies_admit_the_planes(objects: Objects) -> Iterator[str]:
    """Each connection may leave its client and enter its server."""
    for client, server, port in dict.fromkeys(links(objects)):
        if not admitted(objects, "Egress", client.labels, server.labels, port):
            yield f"{client.name}: no NetworkPolicy lets it out to {server.name} at port {port}"
        if not admitted(objects, "Ingress", server.labels, client.labels, port):
            yield f"{server.name}: no NetworkPolicy lets {client.name} in at port {port}"


def policies_admit_nothing_else(objects: Objects) -> Iterator[str]:
    """No other pair of pods, no stranger, no other port."""
    wanted = set(links(objects))
    for server in pods(objects):
        for port in sorted(set(server.ports.values())):
            for client in pods(objects):
                if Link(client, server, port) not in wanted:
                    yield from _too_open(objects, client, server, port)
            for namespace, whose in ((None, "its own"), ({}, "another")):
                if admitted(objects, "Ingress", server.labels, STRANGER, port, namespace=namespace):
                    yield f"{server.name}: lets strangers of {whose} namespace in at port {port}"
        if admitted(objects, "Egress", server.labels, STRANGER, HTTPS, namespace={}):
            yield f"{server.name}: may go out to anywhere"


def _too_open(objects: Objects, client: Pod, server: Pod, port: int) -> Iterator[str]:
    if admitted(objects, "Egress", client.labels, server.labels, port):
        yield f"{client.name}: may go out to {server.name} at port {port}, which no plane needs"
    if admitted(objects, "Ingress", server.labels, client.labels, port):
        yield f"{server.name}: lets {client.name} in at port {port}, which no plane needs"


def policies_admit_names_and_scraping(objects: Objects) -> Iterator[str]:
    """Whoever connects to a name may look it up; whoever has a label may read health pages."""
    for pod in {link.client.name: link.client for link in links(objects)}.values():
        for protocol in ("UDP", "TCP"):
            if not admitted(objects, "Egress", pod.labels, STRANGER, NAMES, namespace={}, protocol=protocol):
                yield f"{pod.name}: connects to names, and no NetworkPolicy lets it look them up over {protocol}"
    for pod in pods(objects):
        for name, port in pod.ports.items():
            scraped = admitted(objects, "Ingress", pod.labels, STRANGER, port, namespace=MONITORING)
            if scraped != name.startswith("health"):
                yield f"{pod.name}: its port {name} {'can' if scraped else 'cannot'} be reached from monitoring"


def policies_mean_real_pods(objects: Objects) -> Iterator[str]:
    """Selectors of policies admit pods, and their ports are those of the pods that are entered."""
    everyone = pods(objects)
    for policy in of_kind(objects, "NetworkPolicy"):
        ours = [pod for pod in everyone if matches(policy["spec"]["podSelector"], pod.labels)]
        if not ours:
            yield f"{name_of(policy)}: its selector admits no pod"
        for direction, side in (("ingress", "from"), ("egress", "to")):
            for rule in policy["spec"].get(direction, []):
                selectors = [peer["podSelector"] for peer in rule.get(side, []) if "podSelector" in peer]
                theirs = [pod for pod in everyone if any(matches(selector, pod.labels) for selector in selectors)]
                if selectors and not theirs:
                    yield f"{name_of(policy)}: the other side of its {direction} admits no pod"
                yield from _policy_ports(policy, rule, ours if direction == "ingress" else theirs)


def _policy_ports(policy: Object, rule: Object, entered: list[Pod]) -> Iterator[str]:
    known = {port for pod in entered for port in pod.ports.values()}
    for port in rule.get("ports", []):
        if port["port"] not in known and port["port"] != NAMES:
            yield f"{name_of(policy)}: port {port['port']} is no port of the pods that are entered"


def admitted(
    objects: Objects,
    direction: str,
    subject: Mapping[str, str],
    peer: Mapping[str, str],
    port: int,
    *,
    namespace: Mapping[str, str] | None = None,
    protocol: str = "TCP",
) -> bool:
    """Whether policies let a connection pass in a direction.

    Args:
      objects: with the policies.
      direction: Ingress or Egress, as `subject` sees it.
      subject: labels of the pod whose policies count.
      peer: labels of the pod at the other end.
      port: of the end that is entered.
      namespace: labels of the peer's namespace; None for the subject's own.
      protocol: TCP or UDP.
    """
    policies = [
        policy["spec"]
        for policy in of_kind(objects, "NetworkPolicy")
        if direction in policy["spec"]["policyTypes"] and matches(policy["spec"]["podSelector"], subject)
    ]
    if not policies:
        return True
    side = "from" if direction == "Ingress" else "to"
    for rule in (rule for policy in policies for rule in policy.get(direction.lower(), [])):
        ports = [(entry.get("protocol", "TCP"), entry["port"]) for entry in rule.get("ports", [])]
        peers = rule.get(side, [])
        if ports and (protocol, port) not in ports:
            continue
        if not peers or any(_peer_admits(entry, peer, namespace) for entry in peers):
            return True
    return False


def _peer_admits(peer: Object, labels: Mapping[str, str], namespace: Mapping[str, str] | None) -> bool:
    if "namespaceSelector" in peer:
        here = matches(peer["namespaceSelector"], namespace or {})
    else:
        here = namespace is None
    return here and matches(peer.get("podSelector"), labels)


CHECKS = (
    clients_find_servers,
    policies_admit_the_planes,
    policies_admit_nothing_else,
    policies_admit_names_and_scraping,
    policies_mean_real_pods,
)
