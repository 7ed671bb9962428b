"""Each overlay does what it is there for, they combine, and the README's own example is one that works."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.kubernetes import network, wiring
from tests.unit.kubernetes.checks import faults
from tests.unit.kubernetes.objects import Container, Object, environment, find, of_kind, pods, quantity
from tests.unit.kubernetes.render import COMPONENTS, KUBERNETES, READER, load, needs_kubectl, render

pytestmark = [pytest.mark.unit, needs_kubectl]

README = KUBERNETES / "README.md"
GPU = "nvidia.com/gpu"
REGISTRY = "registry.example/rl"


def containers(objects: list[Object]) -> dict[str, Container]:
    return {container.role: container for pod in pods(objects) for container in pod.containers}


def workload(objects: list[Object], kind: str, name: str) -> dict[str, Any]:
    found = find(objects, kind, name)
    assert found is not None, f"no {kind} {name}"
    return dict(found["spec"])


def test_small_is_one_of_each_and_fits_one_small_node() -> None:
    objects = render("overlays/small")
    assert {pod.name: pod.owner["spec"]["replicas"] for pod in pods(objects)} == {
        "Deployment actor": 1,
        "Deployment envserver": 1,
        "StatefulSet broker": 1,
        "StatefulSet learner": 1,
    }
    assert not of_kind(objects, "HorizontalPodAutoscaler")
    requests = [container.spec["resources"]["requests"] for container in containers(objects).values()]
    assert sum(quantity(request["cpu"]) for request in requests) <= 1.5
    assert sum(quantity(request["memory"]) for request in requests) <= quantity("2Gi")


def test_gpu_gives_learner_and_broker_a_gpu_and_the_image_for_it() -> None:
    objects = render("overlays/gpu")
    for role, container in containers(objects).items():
        wanted = role in ("learner", "broker")
        assert container.spec["resources"]["limits"].get(GPU) == (1 if wanted else None)
        assert container.spec["image"] == f"zerobeast/{role}:latest{'-cuda' if wanted else ''}"
    for pod in pods(objects):
        tolerated = [toleration["key"] for toleration in pod.spec.get("tolerations", [])]
        assert tolerated == ([GPU] if pod.owner["kind"] == "StatefulSet" else [])
        assert ("nodeSelector" in pod.spec) == bool(tolerated)
    seen = environment(containers(objects)["learner"], objects)
    assert (seen["BEAST_LEARNER__DEVICE"], seen["BEAST_BROKER__DEVICE"]) == ("cuda", "cuda")


def test_brokers_are_three_and_nothing_else_differs() -> None:
    base, objects = render("base"), render("overlays/brokers")
    broker = find(objects, "StatefulSet", "broker")
    assert broker is not None
    assert broker["spec"]["replicas"] == 3
    broker["spec"]["replicas"] = 1
    assert objects == base


def test_a_sidecar_is_the_env_server_but_for_where_it_listens() -> None:
    objects = render("overlays/sidecar")
    for kind in ("Deployment", "Service", "PodDisruptionBudget"):
        assert find(objects, kind, "envserver") is None
    alone, beside = containers(render("base"))["envserver"].spec, containers(objects)["envserver"].spec
    assert beside["restartPolicy"] == "Always"
    same = {"name", "image", "imagePullPolicy", "resources", "securityContext"}
    assert {key: beside[key] for key in same} == {key: alone[key] for key in same}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert beside[probe] | {"httpGet": alone[probe]["httpGet"]} == alone[probe]
        assert beside[probe]["httpGet"]["path"] == alone[probe]["httpGet"]["path"]
    assert not [link for link in network.links(objects) if link.port in (5550, 5551)]


def test_encrypted_gives_every_container_the_public_keys_and_its_own_secret_and_holds_none() -> None:
    objects = render("overlays/encrypted")
    named = set()
    for pod in pods(objects):
        (container,) = pod.containers
        named |= {"zerobeast-public-keys", f"zerobeast-{container.role}-key"}
        secret = {"secretName": f"zerobeast-{container.role}-key", "defaultMode": 0o440}
        assert [volume["secret"] for volume in pod.spec["volumes"] if "secret" in volume] == [secret]
        assert {"name": "public-keys", "configMap": {"name": "zerobeast-public-keys"}} in pod.spec["volumes"]
        for name in ("public", "secret"):
            volume = {"public": "public-keys", "secret": "secret-key"}[name]
            mount = {"name": volume, "mountPath": f"/keys/{name}", "readOnly": True}
            assert mount in container.spec["volumeMounts"]
        seen = environment(container, objects)
        assert (seen["BEAST_SECURITY__KEYS"], seen["BEAST_SECURITY__INSECURE"]) == ("/keys", "false")
    assert not of_kind(objects, "Secret")
    assert named == wiring.YOURS


def test_without_keys_it_is_said_that_the_network_is_what_protects() -> None:
    for container in containers(render("base")).values():
        assert environment(container, render("base"))["BEAST_SECURITY__INSECURE"] == "true"


def test_every_overlay_is_the_base_and_one_component() -> None:
    for name in COMPONENTS:
        written = yaml.safe_load((KUBERNETES / "overlays" / name / "kustomization.yaml").read_text(encoding="utf-8"))
        assert written["resources"] == ["../../base"]
        assert written["components"] == [f"../../components/{name}"]


#: as the README has them: what changes an object comes before what removes it, keys come last
ORDER = ["small", "gpu", "brokers", "sidecar", "encrypted"]
COMBINATIONS = [*itertools.combinations(ORDER, 2), tuple(ORDER)]


@pytest.mark.parametrize("chosen", COMBINATIONS, ids="+".join)
def test_components_combine(chosen: tuple[str, ...], tmp_path: Path) -> None:
    objects = render(_own_overlay(tmp_path, components=chosen))
    assert faults(objects) == []
    for container in containers(objects).values():
        mounts = [mount["mountPath"] for mount in container.spec["volumeMounts"]]
        has_keys = "encrypted" in chosen and not container.starts_first  # a sidecar is on unix sockets
        assert ("/keys/secret" in mounts) == has_keys
        assert bool(environment(container, objects).get("BEAST_SECURITY__KEYS")) == has_keys


@pytest.mark.parametrize("component", COMPONENTS)
def test_an_overlay_of_ones_own_moves_namespace_and_images(component: str, tmp_path: Path) -> None:
    images = [
        {"name": f"zerobeast/{role}", "newName": f"{REGISTRY}/{role}", "newTag": "1.0"}
        for role in ("learner", "broker", "envserver", "actor")
    ]
    objects = render(_own_overlay(tmp_path, components=(component,), namespace="pong-3", images=images))
    for role, container in containers(objects).items():
        assert container.spec["image"] == f"{REGISTRY}/{role}:1.0"
    assert [space["metadata"]["name"] for space in of_kind(objects, "Namespace")] == ["pong-3"]
    assert not list(wiring.one_namespace(objects))


def test_a_changed_setting_gets_a_new_name_so_that_pods_restart(tmp_path: Path) -> None:
    changed = [{"name": "run", "behavior": "merge", "literals": ["BEAST_SEED=7"]}]
    (before,), (after,) = (
        of_kind(objects, "ConfigMap")
        for objects in (render("base"), render(_own_overlay(tmp_path, configMapGenerator=changed)))
    )
    assert after["data"] == before["data"] | {"BEAST_SEED": "7"}
    assert after["metadata"]["name"] != before["metadata"]["name"]


def test_the_readers_claim_is_the_learners() -> None:
    reader = load(READER)
    (claim,) = workload(render("base"), "StatefulSet", "learner")["volumeClaimTemplates"]
    (volume,) = reader["spec"]["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == f"{claim['metadata']['name']}-learner-0"
    learner = containers(render("base"))["learner"].spec
    assert reader["spec"]["containers"][0]["securityContext"] == learner["securityContext"]


def test_the_readmes_example_works(tmp_path: Path) -> None:
    (example,) = re.findall(
        r"```yaml\n(# .*?kustomization\.yaml\n.*?)```", README.read_text(encoding="utf-8"), re.DOTALL
    )
    written = yaml.safe_load(example)
    assert written.pop("resources") == ["../../base"]
    components = tuple(Path(path).name for path in written.pop("components"))
    objects = render(_own_overlay(tmp_path, components=components, **written))
    assert [space["metadata"]["name"] for space in of_kind(objects, "Namespace")] == [written["namespace"]]
    replaced = {image["name"]: f"{image['newName']}:{image['newTag']}" for image in written["images"]}
    for role, container in containers(objects).items():
        assert container.spec["image"] == replaced[f"zerobeast/{role}"]


def test_the_readme_names_folders_and_files_that_exist() -> None:
    text = README.read_text(encoding="utf-8")
    named = set(re.findall(r"deploy/kubernetes/[\w./-]*\w", text)) - {"deploy/kubernetes/overlays/mine"}
    root = KUBERNETES.parents[1]
    assert [path for path in sorted(named) if not (root / path).exists() and "overlays/mine" not in path] == []
    listed = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert listed == ORDER
    assert sorted(listed) == COMPONENTS


def _own_overlay(folder: Path, *, components: tuple[str, ...] = (), **more: Any) -> Path:
    """A kustomization outside the tree; kustomize takes relative paths only."""
    here = os.path.relpath(KUBERNETES, folder)
    parts = {"resources": [f"{here}/base"], "components": [f"{here}/components/{name}" for name in components]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(parts | more), encoding="utf-8")
    return folder
