"""A pod that would not run well, or may do too much, is named."""

from __future__ import annotations

import pytest

from tests.unit.kubernetes import probes, safety
from tests.unit.kubernetes.mutations import FIRST, GONE, POD, SIDECAR, Broken, assert_named
from tests.unit.kubernetes.render import needs_kubectl

pytestmark = [pytest.mark.unit, needs_kubectl]

BROKEN = [
    # probes, ports, resources
    Broken(
        probes.containers_have_probes,
        "Deployment actor",
        f"{FIRST} livenessProbe",
        GONE,
        "Deployment actor, container actor: has no livenessProbe",
    ),
    Broken(
        probes.containers_have_probes,
        "StatefulSet learner",
        f"{FIRST} livenessProbe httpGet path",
        "/health",
        "StatefulSet learner, container learner: its livenessProbe asks /health, expected /livez",
    ),
    Broken(
        probes.containers_have_probes,
        "StatefulSet broker",
        f"{FIRST} readinessProbe httpGet path",
        "/livez",
        "StatefulSet broker, container broker: its readinessProbe asks /livez, expected /readyz",
    ),
    Broken(
        probes.containers_have_probes,
        "StatefulSet broker",
        f"{FIRST} startupProbe httpGet port",
        "http",
        "StatefulSet broker, container broker: its startupProbe asks port http, which it does not declare",
    ),
    Broken(
        probes.containers_have_probes,
        "StatefulSet broker",
        f"{FIRST} ports 2 containerPort",
        8090,
        "StatefulSet broker, container broker: its startupProbe asks port 8090, and its health page is on 8080",
    ),
    Broken(
        probes.containers_have_probes,
        "Deployment actor",
        f"{SIDECAR} env 0 value",
        "8080",
        "Deployment actor, container envserver: its startupProbe asks port 8081, and its health page is on 8080",
        "overlays/sidecar",
    ),
    Broken(
        probes.containers_have_probes,
        "ConfigMap run",
        "data BEAST_HEALTH__HOST",
        "127.0.0.1",
        "Deployment actor, container actor: its health page is on 127.0.0.1",
    ),
    Broken(
        probes.probes_are_patient,
        "StatefulSet learner",
        f"{FIRST} startupProbe failureThreshold",
        3,
        "StatefulSet learner, container learner: is killed before it had 60 s to start",
    ),
    Broken(
        probes.probes_are_patient,
        "Deployment envserver",
        f"{FIRST} livenessProbe failureThreshold",
        1,
        "Deployment envserver, container envserver: is killed after 1 failures to answer",
    ),
    Broken(
        probes.sidecars_keep_running,
        "Deployment actor",
        f"{SIDECAR} restartPolicy",
        GONE,
        "Deployment actor, container envserver: the pod would wait for its end",
        "overlays/sidecar",
    ),
    Broken(
        probes.ports_are_unique,
        "Deployment actor",
        f"{SIDECAR} ports 0 containerPort",
        8080,
        "Deployment actor: containerPort 8080 stands 2 times",
        "overlays/sidecar",
    ),
    Broken(
        probes.ports_are_unique,
        "StatefulSet learner",
        f"{FIRST} ports 2 name",
        "replies",
        "StatefulSet learner: name replies stands 2 times",
    ),
    Broken(
        probes.pods_may_end,
        "StatefulSet learner",
        f"{POD} terminationGracePeriodSeconds",
        5,
        "StatefulSet learner: is killed 5 s after it is told to end",
    ),
    Broken(
        probes.resources_are_stated,
        "Deployment actor",
        f"{FIRST} resources limits memory",
        GONE,
        "Deployment actor, container actor: has no request or no limit of memory",
    ),
    Broken(
        probes.resources_are_stated,
        "Deployment actor",
        f"{FIRST} resources requests cpu",
        "1500m",
        "Deployment actor, container actor: requests 1500m of cpu, above its limit of 1",
    ),
    # rights
    Broken(
        safety.pods_are_restricted,
        "Deployment envserver",
        f"{POD} securityContext runAsNonRoot",
        GONE,
        "Deployment envserver: runAsNonRoot is None, expected True",
    ),
    Broken(
        safety.pods_are_restricted,
        "StatefulSet learner",
        f"{POD} securityContext fsGroup",
        0,
        "StatefulSet learner: fsGroup is 0, expected 1000",
    ),
    Broken(
        safety.pods_are_restricted,
        "StatefulSet learner",
        f"{POD} securityContext seccompProfile",
        GONE,
        "StatefulSet learner: seccompProfile is None",
    ),
    Broken(
        safety.pods_are_restricted,
        "Deployment actor",
        f"{POD} automountServiceAccountToken",
        GONE,
        "Deployment actor: automountServiceAccountToken is None, expected False",
    ),
    Broken(
        safety.pods_are_restricted,
        "Deployment actor",
        f"{POD} hostNetwork",
        True,
        "Deployment actor: hostNetwork is True, expected None",
    ),
    Broken(
        safety.containers_are_restricted,
        "Deployment actor",
        f"{FIRST} securityContext readOnlyRootFilesystem",
        False,
        "Deployment actor, container actor: readOnlyRootFilesystem is False, expected True",
    ),
    Broken(
        safety.containers_are_restricted,
        "Deployment actor",
        f"{SIDECAR} securityContext capabilities",
        GONE,
        "Deployment actor, container envserver: capabilities is None",
        "overlays/sidecar",
    ),
    Broken(
        safety.containers_are_restricted,
        "Deployment actor",
        f"{FIRST} securityContext privileged",
        True,
        "Deployment actor, container actor: privileged is True",
    ),
    Broken(
        safety.containers_are_restricted,
        "StatefulSet broker",
        f"{FIRST} volumeMounts 0 mountPath",
        "/temp",
        "StatefulSet broker, container broker: cannot write to /tmp",
    ),
    Broken(
        safety.containers_are_restricted,
        "StatefulSet broker",
        f"{FIRST} command",
        ["python"],
        "StatefulSet broker, container broker: command is ['python'], expected None",
    ),
    Broken(
        safety.containers_are_restricted,
        "StatefulSet broker",
        f"{FIRST} imagePullPolicy",
        GONE,
        "StatefulSet broker, container broker: imagePullPolicy is None, expected IfNotPresent",
    ),
    Broken(
        safety.secrets_can_be_read,
        "StatefulSet learner",
        f"{POD} volumes 2 secret defaultMode",
        0o644,
        "StatefulSet learner: volume secret-key has mode 644, expected 440",
        "overlays/encrypted",
    ),
    Broken(
        safety.secrets_can_be_read,
        "StatefulSet learner",
        f"{FIRST} volumeMounts 3 readOnly",
        GONE,
        "StatefulSet learner, container learner: mounts secret-key to write",
        "overlays/encrypted",
    ),
    Broken(safety.no_secrets_in_files, "ConfigMap run", "kind", "Secret", "Secret run-"),
    Broken(
        safety.one_learner, "StatefulSet learner", "spec replicas", 2, "StatefulSet learner: has 2 replicas, expected 1"
    ),
    Broken(safety.one_learner, "StatefulSet learner", "kind", "Deployment", "StatefulSet learner: does not exist"),
    Broken(
        safety.one_learner,
        "StatefulSet learner",
        "spec volumeClaimTemplates 0 spec accessModes",
        ["ReadWriteMany"],
        "StatefulSet learner: claim runs has modes ['ReadWriteMany'], expected ReadWriteOncePod",
    ),
    Broken(
        safety.one_learner,
        "StatefulSet learner",
        f"{FIRST} volumeMounts 0 mountPath",
        "/runs",
        "StatefulSet learner: its run folder /app/runs is not on a claim",
    ),
    Broken(
        safety.one_learner,
        "StatefulSet learner",
        "spec persistentVolumeClaimRetentionPolicy whenScaled",
        "Delete",
        "StatefulSet learner: its runs would be deleted with it",
    ),
]


@pytest.mark.parametrize("broken", BROKEN, ids=repr)
def test_a_broken_pod_is_named(broken: Broken) -> None:
    assert_named(broken)
