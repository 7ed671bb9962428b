"""Pods run with few rights, have probes that match their health pages, and state their resources."""

from __future__ import annotations

from typing import Any

from tests.unit.kubernetes.rendered import Container, Rendered, needs_kubectl, quantity
from zerobeast.common.process.roles import EVALUATOR

pytestmark = needs_kubectl

USER = 1000  #: user of the images
PATHS = {"startupProbe": "/readyz", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
START_S = 60.0  #: at least this long for a start on a slow node
POD = {"automountServiceAccountToken": False, "enableServiceLinks": False}
POD_CONTEXT = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTEXT = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


def test_pods_meet_the_restricted_profile_and_run_as_the_images_user(run: Rendered) -> None:
    for pod in run.pods:
        assert pod.spec.items() >= POD.items()
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.spec.keys()
        context = {key: value for key, value in pod.spec["securityContext"].items() if key in POD_CONTEXT}
        assert context == POD_CONTEXT
    for container in run.containers.values():
        assert container.spec["securityContext"] == CONTEXT
        assert "/tmp" in container.mounts, "nothing else can be written to"
        assert "command" not in container.spec, "the image's has an init in front"
        assert container.spec["imagePullPolicy"] == "IfNotPresent"


def test_containers_state_what_they_need_and_probes_ask_the_health_page_patiently(run: Rendered) -> None:
    for container in run.containers.values():
        for name in ("cpu", "memory"):
            resources = container.spec["resources"]
            assert 0 < quantity(resources["requests"][name]) <= quantity(resources["limits"][name])
        first, pages = int(container.environ["BEAST_HEALTH__PORT"]), len(container.roles)
        declared = [port for name, port in container.ports.items() if name.startswith("health")]
        assert declared == list(range(first, first + pages))
        assert container.environ["BEAST_HEALTH__HOST"] == "0.0.0.0", "the kubelet asks from outside the pod"
        probes = {kind: container.spec[kind]["httpGet"] for kind in PATHS if kind in container.spec}
        assert probes.keys() == ({"livenessProbe"} if container.process == EVALUATOR else PATHS.keys())
        assert {kind: asked["path"] for kind, asked in probes.items()}.items() <= PATHS.items()
        asked = {container.ports[asked["port"]] for asked in probes.values()}
        assert asked == {declared[-1]}, "who starts last and ends first answers for all"
        start, live = container.spec.get("startupProbe"), container.spec["livenessProbe"]
        patience = start["periodSeconds"] * start["failureThreshold"] if start else live["initialDelaySeconds"]
        assert patience >= START_S


def test_environments_are_apart_from_the_learner_and_its_volume(run: Rendered) -> None:
    for pod in run.pods:
        own = [each for each in pod.containers if each.process == EVALUATOR and "--env_server" not in each.flags]
        if own or any("envserver" in container.roles for container in pod.containers):
            roles = {role for container in pod.containers for role in container.roles}
            assert "learner" not in roles, "the containers of a pod share one network"
            assert "volumeClaimTemplates" not in pod.owner
            assert not any("persistentVolumeClaim" in volume for volume in pod.spec["volumes"])


def test_ports_of_a_pod_are_unique_and_a_corrected_setting_reaches_one_that_never_was_ready(run: Rendered) -> None:
    for pod in run.pods:
        ports = [entry for container in pod.containers for entry in container.ports.items()]
        assert all(len(set(values)) == len(values) for values in zip(*ports, strict=True)), "they share one network"
        assert all(each.spec["restartPolicy"] == "Always" for each in pod.containers if each.is_sidecar)
    assert all(found["spec"]["podManagementPolicy"] == "Parallel" for found in run.of_kind("StatefulSet"))


def secrets_of(container: Container) -> dict[str, Any]:
    """The volume with a container's secret keys: those that it needs for planes outside itself, and no others."""
    names = [f"zerobeast-{'actor' if role == EVALUATOR else role}-key" for role in container.roles]
    if len(names) == 1:
        return {"secret": {"secretName": names[0], "defaultMode": 0o440}}
    sources = [{"secret": {"name": name}} for name in names if "envserver" not in name]  # its plane stays inside
    return {"projected": {"sources": sources, "defaultMode": 0o440}}


def test_pods_mount_only_the_keys_of_their_roles_and_manifests_hold_none(
    run: Rendered, chosen: tuple[str, ...]
) -> None:
    assert not run.of_kind("Secret")
    encrypted = "encrypted" in chosen
    for pod, container in [(each, container) for each in run.pods for container in each.containers]:
        keyed = encrypted and not container.is_sidecar  # a socket of its pod
        security = (container.environ.get("BEAST_SECURITY__KEYS", ""), container.environ["BEAST_SECURITY__INSECURE"])
        assert security == (("/keys", "false") if encrypted else ("", "true"))
        mounted = {path: mount for path, mount in container.mounts.items() if path.startswith("/keys")}
        assert mounted.keys() == ({"/keys/public", "/keys/secret"} if keyed else set())
        assert all(mount["readOnly"] for mount in mounted.values())
        if keyed:
            volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
            assert volumes[mounted["/keys/secret"]["name"]].items() >= secrets_of(container).items()
            assert volumes[mounted["/keys/public"]["name"]]["configMap"] == {"name": "zerobeast-public-keys"}
            secrets = [volume for volume in volumes.values() if {"secret", "projected"} & volume.keys()]
            assert len(secrets) == len(pod.containers) - any(each.is_sidecar for each in pod.containers)
