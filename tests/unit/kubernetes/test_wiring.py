"""A reference that leads nowhere is named."""

from __future__ import annotations

import pytest

from tests.unit.kubernetes import wiring
from tests.unit.kubernetes.mutations import COMPONENT, FIRST, GONE, POD, SIDECAR, Broken, assert_named
from tests.unit.kubernetes.render import needs_kubectl

pytestmark = [pytest.mark.unit, needs_kubectl]

BROKEN = [
    Broken(wiring.names_are_unique, "Service broker", "metadata name", "learner", "Service learner: stands 2 times"),
    Broken(
        wiring.one_namespace, "Service broker", "metadata namespace", "other", "Service broker: is in namespace other"
    ),
    Broken(
        wiring.labels_are_standard,
        "Deployment actor",
        "spec template metadata labels app.kubernetes.io/part-of",
        GONE,
        "Deployment actor, pod: has no label app.kubernetes.io/part-of",
    ),
    Broken(
        wiring.workloads_select_their_pods,
        "Deployment actor",
        f"spec template metadata labels {COMPONENT}",
        "actress",
        "Deployment actor: its selector does not admit its own pods",
    ),
    Broken(
        wiring.workloads_select_their_pods,
        "Deployment actor",
        f"spec selector matchLabels {COMPONENT}",
        GONE,
        "Deployment actor: its selector admits the pods of StatefulSet broker",
    ),
    Broken(
        wiring.workloads_select_their_pods,
        "StatefulSet broker",
        f"{POD} topologySpreadConstraints 0 labelSelector matchLabels {COMPONENT}",
        "actor",
        "StatefulSet broker: it spreads over nodes by labels that its pods do not have",
    ),
    Broken(
        wiring.services_reach_pods,
        "Service envserver",
        f"spec selector {COMPONENT}",
        "envservers",
        "Service envserver: its selector admits no pod",
    ),
    Broken(
        wiring.services_reach_pods,
        "Service broker",
        "spec ports 1 targetPort",
        "answers",
        "Service broker: targetPort answers is no port of StatefulSet broker",
    ),
    Broken(
        wiring.services_reach_pods,
        "Service broker",
        "spec ports 0 port",
        5565,
        "Service broker: port 5565 leads to 5555 of StatefulSet broker",
    ),
    Broken(
        wiring.services_reach_pods,
        "StatefulSet learner",
        f"{FIRST} ports 2 name",
        "versions",
        "Service learner: targetPort weights is no port of StatefulSet learner",
    ),
    Broken(
        wiring.stateful_sets_have_their_service,
        "StatefulSet broker",
        "spec serviceName",
        "brokers",
        "StatefulSet broker: its Service brokers does not exist",
    ),
    Broken(
        wiring.stateful_sets_have_their_service,
        "Service learner",
        "spec clusterIP",
        GONE,
        "Service learner: names the pods of StatefulSet learner and is not headless",
    ),
    Broken(
        wiring.stateful_sets_have_their_service,
        "StatefulSet broker",
        "spec serviceName",
        "learner",
        "Service learner: names the pods of StatefulSet broker and does not select them",
    ),
    Broken(
        wiring.configuration_exists,
        "StatefulSet learner",
        f"{FIRST} envFrom 0 configMapRef name",
        "run",
        "StatefulSet learner: ConfigMap run does not exist",
    ),
    Broken(
        wiring.configuration_exists,
        "Deployment actor",
        f"{POD} volumes 2 secret secretName",
        "keys",
        "Deployment actor: Secret keys does not exist",
        "overlays/encrypted",
    ),
    Broken(
        wiring.limits_are_the_containers_own,
        "Deployment actor",
        f"{SIDECAR} env 1 valueFrom resourceFieldRef containerName",
        "actor",
        "Deployment actor, container envserver: reads limits.cpu of actor",
        "overlays/sidecar",
    ),
    Broken(
        wiring.limits_are_the_containers_own,
        "StatefulSet learner",
        f"{FIRST} resources limits cpu",
        GONE,
        "StatefulSet learner, container learner: reads limits.cpu, which it does not have",
    ),
    Broken(
        wiring.volumes_exist,
        "Deployment envserver",
        f"{FIRST} volumeMounts 0 name",
        "temp",
        "Deployment envserver, container envserver: mounts temp, which is no volume of its pod",
    ),
    Broken(
        wiring.volumes_exist,
        "Deployment envserver",
        f"{POD} volumes 1",
        {"name": "spare", "emptyDir": {}},
        "Deployment envserver: nobody mounts its volume spare",
    ),
    Broken(
        wiring.volumes_exist,
        "StatefulSet learner",
        f"{POD} volumes 0",
        {"name": "tmp", "persistentVolumeClaim": {"claimName": "scratch"}},
        "StatefulSet learner: PersistentVolumeClaim scratch does not exist",
    ),
    Broken(
        wiring.autoscalers_have_targets,
        "HorizontalPodAutoscaler actor",
        "spec scaleTargetRef name",
        "actors",
        "HorizontalPodAutoscaler actor: Deployment actors does not exist",
    ),
    Broken(
        wiring.autoscalers_have_targets,
        "Deployment actor",
        "spec replicas",
        3,
        "Deployment actor: states replicas, which HorizontalPodAutoscaler actor decides",
    ),
    Broken(
        wiring.autoscalers_have_targets,
        "Deployment actor",
        f"{SIDECAR} resources requests cpu",
        GONE,
        "HorizontalPodAutoscaler actor: Deployment actor, container envserver requests no cpu",
        "overlays/sidecar",
    ),
    Broken(
        wiring.budgets_let_nodes_drain,
        "PodDisruptionBudget actor",
        f"spec selector matchLabels {COMPONENT}",
        "actors",
        "PodDisruptionBudget actor: selects the pods of 0 workloads",
    ),
    Broken(
        wiring.budgets_let_nodes_drain,
        "PodDisruptionBudget broker",
        "spec maxUnavailable",
        0,
        "PodDisruptionBudget broker: blocks every drain",
    ),
]


@pytest.mark.parametrize("broken", BROKEN, ids=repr)
def test_a_broken_reference_is_named(broken: Broken) -> None:
    assert_named(broken)
