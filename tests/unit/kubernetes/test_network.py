"""A connection that is cut, or one too many, is named."""

from __future__ import annotations

import pytest

from tests.unit.kubernetes import network
from tests.unit.kubernetes.mutations import COMPONENT, FIRST, GONE, SIDECAR, Broken, assert_named
from tests.unit.kubernetes.render import needs_kubectl

pytestmark = [pytest.mark.unit, needs_kubectl]

BROKEN = [
    Broken(
        network.clients_find_servers,
        "ConfigMap run",
        "data BEAST_BROKER__ENDPOINT",
        "tcp://brokers:5555",
        "Deployment actor, container actor: connects to tcp://brokers:5555, and there is no Service brokers",
    ),
    Broken(
        network.clients_find_servers,
        "ConfigMap run",
        "data BEAST_LEARNER__ENDPOINT",
        "tcp://learner:5561",
        "Service learner: has no port 5563, to which StatefulSet broker, container broker connects",
    ),
    Broken(
        network.clients_find_servers,
        "ConfigMap run",
        "data BEAST_LEARNER__ENDPOINT",
        "learner:5560",
        "StatefulSet broker, container broker: endpoint 'learner:5560': expected tcp://host:port",
    ),
    Broken(
        network.clients_find_servers,
        "StatefulSet broker",
        f"{FIRST} env 0 value",
        "tcp://127.0.0.1:5555",
        "Service broker: no broker listens at port 5555",
    ),
    Broken(
        network.clients_find_servers,
        "Deployment actor",
        f"{SIDECAR} env 0",
        {"name": "BEAST_ENVSERVER__ENDPOINT", "value": "ipc:///sockets/other"},
        "Deployment actor, container actor: connects to ipc:///sockets/envserver, where no envserver of its pod",
        "overlays/sidecar",
    ),
    Broken(
        network.clients_find_servers,
        "Deployment actor",
        f"{FIRST} volumeMounts 0 mountPath",
        "/pipes",
        "Deployment actor, container actor: does not mount /sockets",
        "overlays/sidecar",
    ),
    Broken(
        network.policies_admit_the_planes,
        "NetworkPolicy weights-to-learner",
        "spec egress 0 ports 0 port",
        5561,
        "StatefulSet broker: no NetworkPolicy lets it out to StatefulSet learner at port 5562",
    ),
    Broken(
        network.policies_admit_the_planes,
        "NetworkPolicy rollouts-from-actor",
        f"spec ingress 0 from 0 podSelector matchLabels {COMPONENT}",
        "broker",
        "StatefulSet learner: no NetworkPolicy lets Deployment actor in at port 5560",
    ),
    Broken(
        network.policies_admit_nothing_else,
        "NetworkPolicy weights-from-broker",
        "spec ingress 0 ports 0 port",
        5560,
        "StatefulSet learner: lets StatefulSet broker in at port 5560, which no plane needs",
    ),
    Broken(
        network.policies_admit_nothing_else,
        "NetworkPolicy steps-from-actor",
        "spec ingress 0 from",
        GONE,
        "Deployment envserver: lets strangers of another namespace in at port 5550",
    ),
    Broken(
        network.policies_admit_nothing_else,
        "NetworkPolicy names",
        "spec egress 0 ports",
        GONE,
        "Deployment actor: may go out to anywhere",
    ),
    Broken(
        network.policies_admit_nothing_else,
        "NetworkPolicy default-deny",
        "spec policyTypes",
        ["Ingress"],
        "Deployment envserver: may go out to anywhere",
    ),
    Broken(
        network.policies_admit_names_and_scraping,
        "NetworkPolicy names",
        "spec podSelector matchExpressions 0 values",
        ["actor"],
        "StatefulSet broker: connects to names, and no NetworkPolicy lets it look them up over UDP",
    ),
    Broken(
        network.policies_admit_names_and_scraping,
        "NetworkPolicy health",
        "spec ingress 0 ports 1",
        GONE,
        "Deployment actor: its port health-envs cannot be reached from monitoring",
        "overlays/sidecar",
    ),
    Broken(
        network.policies_admit_names_and_scraping,
        "NetworkPolicy health",
        "spec ingress 0 ports",
        GONE,
        "StatefulSet learner: its port weights can be reached from monitoring",
    ),
    Broken(
        network.policies_mean_real_pods,
        "NetworkPolicy steps-to-envserver",
        f"spec podSelector matchLabels {COMPONENT}",
        "actors",
        "NetworkPolicy steps-to-envserver: its selector admits no pod",
    ),
    Broken(
        network.policies_mean_real_pods,
        "NetworkPolicy steps-to-envserver",
        f"spec egress 0 to 0 podSelector matchLabels {COMPONENT}",
        "envservers",
        "NetworkPolicy steps-to-envserver: the other side of its egress admits no pod",
    ),
    Broken(
        network.policies_mean_real_pods,
        "NetworkPolicy inference-from-actor",
        "spec ingress 0 ports 1 port",
        5557,
        "NetworkPolicy inference-from-actor: port 5557 is no port of the pods that are entered",
    ),
]


@pytest.mark.parametrize("broken", BROKEN, ids=repr)
def test_a_broken_connection_is_named(broken: Broken) -> None:
    assert_named(broken)
