"""API servers accept the objects, which refer only to objects that exist; settings are those of the program."""

from __future__ import annotations

import functools
import re
from itertools import chain

import pytest
import yaml

from tests.build.compose import ENVS, services
from tests.unit.kubernetes.rendered import KUBERNETES, ORDER, ROOT, Rendered, needs_kubectl, render
from zerobeast import __version__
from zerobeast.common.config.load import gather
from zerobeast.common.config.process import Instance
from zerobeast.common.process.roles import EVALUATOR, ROLES

pytestmark = needs_kubectl

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
        found = gather(container.flags, container.environ, own=Instance).config
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
