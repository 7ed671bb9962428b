"""Pods run with few rights, have probes that match their pages, and refer to settings and objects that exist."""

from __future__ import annotations

import functools
import re
from itertools import chain
from typing import Any

import pytest
import yaml

from tests.build.compose import ENVS, services
from tests.helpers import ROOT
from tests.unit.kubernetes.manifests import KUBERNETES, ORDER, Container, Rendered, needs_kubectl, quantity, render
from zerobeast import __version__
from zerobeast.common.config.load import resolve_flags
from zerobeast.common.config.process import Instance
from zerobeast.common.process.roles import EVALUATOR, ROLES

pytestmark = [needs_kubectl, pytest.mark.slow]

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


SOURCES = {"configMap": "name", "secret": "secretName"}  #: volume source -> key that holds its name
KEYS = {"zerobeast-public-keys", *(f"zerobeast-{role}-key" for role in ROLES)}  #: created by hand
OPERATOR = "monitoring.coreos.com/v1"  #: kinds that a cluster has only if Prometheus' operator is installed
once = functools.cache(functools.cache)  #: the package would read two megabytes for every object
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]


@pytest.mark.parametrize("overlay", ["base", *(f"overlays/{name}" for name in ORDER)])
def test_the_oldest_and_the_newest_api_server_accept_it(overlay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schemas = pytest.importorskip("kubernetes_validate")
    monkeypatch.setattr(schemas.utils, "schema_contents", once(schemas.utils.schema_contents))
    alone = [yaml.safe_load_all((KUBERNETES / file).read_text()) for file in ("reader.yaml", "release.yaml")]
    newest = max(schemas.utils.all_versions(), key=lambda version: [int(part) for part in version.split(".")[:2]])
    for found in chain(render(overlay).objects, *alone):
        for version in ("1.28", newest) if found["apiVersion"] != OPERATOR else ():
            schemas.validate(found, version, strict=True)


def test_there_is_a_learner_for_each_rank_and_deleting_what_was_applied_deletes_no_checkpoint(run: Rendered) -> None:
    assert not run.of_kind("Namespace", "PersistentVolumeClaim")
    learner = run.names("StatefulSet")["learner"]["spec"]
    assert set(learner["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}
    (claim,) = learner["volumeClaimTemplates"]
    assert learner["replicas"] == int(run.containers["learner"].environ.get("BEAST_LEARNER__RANKS", "1"))
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    assert run.containers["learner"].mounts["/app/runs"]["name"] == claim["metadata"]["name"]


def test_names_are_unique_and_workloads_spread_and_select_their_own_pods(run: Rendered) -> None:
    names = [(found["kind"], found["metadata"]["name"]) for found in run.objects]
    assert len(set(names)) == len(names)
    assert {found["metadata"].get("namespace") for found in run.objects} == {"zerobeast"}
    for pod in run.pods:
        spreads = [each["labelSelector"] for each in pod.spec.get("topologySpreadConstraints", [])]
        for selector in (pod.owner["selector"], *spreads):
            assert run.selected(selector) == [pod]


def test_services_are_headless_and_each_port_is_one_of_their_pods(run: Rendered) -> None:
    for spec in (service["spec"] for service in run.of_kind("Service")):
        (pod,) = run.selected({"matchLabels": spec["selector"]})
        assert spec["clusterIP"] == "None"
        assert [pod.ports[port["targetPort"]] for port in spec["ports"]] == [port["port"] for port in spec["ports"]]
    for pod in (each for each in run.pods if "serviceName" in each.owner):
        selector = run.names("Service")[pod.owner["serviceName"]]["spec"]["selector"]
        assert run.selected({"matchLabels": selector}) == [pod]


def test_configuration_and_volumes_exist_and_are_used(run: Rendered) -> None:
    for pod in run.pods:
        volumes = pod.spec["volumes"]
        assert {volume[kind][key] for volume in volumes for kind, key in SOURCES.items() if kind in volume} <= KEYS
        claims = [claim["metadata"]["name"] for claim in pod.owner.get("volumeClaimTemplates", [])]
        mounted = {mount["name"] for container in pod.containers for mount in container.mounts.values()}
        assert mounted == {*claims, *(volume["name"] for volume in volumes)}


def test_all_read_the_same_settings_and_the_program_takes_them(run: Rendered) -> None:
    (config,) = run.names("ConfigMap")
    assert re.fullmatch(r"run-[a-z0-9]{10}", config), "a changed setting has to restart the pods"
    for container in run.containers.values():
        assert container.spec["envFrom"] == [{"configMapRef": {"name": config}}]
        found = resolve_flags(container.flags, container.environ, own=Instance).config
        assert found.learner.when_done == ("stay" if container.process == "learner" else "exit")


def test_images_are_those_that_compose_builds(run: Rendered, chosen: tuple[str, ...]) -> None:
    wanted = {"learner", "worker"} if "fused" in chosen else set(ROLES)
    assert run.containers.keys() == wanted | ({EVALUATOR, ENVS} if EVALUATOR in chosen else set())
    if {"fused", "gpu"} <= set(chosen):
        assert run.containers["worker"].environ["BEAST_BROKER__DEVICE"] == "cpu", "the learner has the GPU"
    for name, container in ((container.process, container) for container in run.containers.values()):
        built = (COMPOSE if name == EVALUATOR else services("docker-compose.yml", "deploy/compose/fused.yml"))[name]
        assert built["image"] == f"zerobeast/{name}"
        cuda = "-cuda" if "gpu" in chosen and name in ("learner", "broker") else ""
        assert container.spec["image"] == f"zerobeast/{name}:{__version__}{cuda}"


def test_the_readers_claim_and_image_are_the_runs() -> None:
    reader = yaml.safe_load((KUBERNETES / "reader.yaml").read_text(encoding="utf-8"))["spec"]
    run = render("base")
    (claim,) = run.names("StatefulSet")["learner"]["spec"]["volumeClaimTemplates"]
    assert reader["volumes"][0]["persistentVolumeClaim"]["claimName"] == f"{claim['metadata']['name']}-learner-0"
    assert reader["containers"][0]["image"] == run.containers["actor"].spec["image"]
    assert reader["containers"][0]["securityContext"] == run.containers["learner"].spec["securityContext"]
