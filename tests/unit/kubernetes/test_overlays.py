"""Each component does what it is there for, and the README's example of a user's own overlay works."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tests.unit.kubernetes.rendered import KUBERNETES, ORDER, README, needs_kubectl, quantity, render, render_own
from zerobeast.common.process.roles import IMAGES

pytestmark = needs_kubectl

GPU = "nvidia.com/gpu"


def test_small_is_one_of_each_and_fits_one_small_node() -> None:
    run = render("overlays/small")
    assert [pod.owner["replicas"] for pod in run.pods] == [1] * 4
    requests = [container.spec["resources"]["requests"] for container in run.containers.values()]
    assert sum(quantity(request["cpu"]) for request in requests) <= 1.5
    assert sum(quantity(request["memory"]) for request in requests) <= quantity("2Gi")


def test_gpu_gives_learner_and_broker_a_gpu_and_a_node_that_has_one() -> None:
    run = render("overlays/gpu")
    for pod in run.pods:
        (container,) = pod.containers
        wanted = container.process in ("learner", "broker")
        assert container.spec["resources"]["limits"].get(GPU) == (1 if wanted else None)
        assert [each["key"] for each in pod.spec.get("tolerations", [])] == ([GPU] if wanted else [])
    seen = run.containers["learner"].environ
    assert (seen["BEAST_LEARNER__DEVICE"], seen["BEAST_BROKER__DEVICE"]) == ("cuda", "cuda")


def test_a_sidecar_differs_from_the_env_server_only_in_where_it_listens() -> None:
    run = render("overlays/sidecar")
    assert "envserver" not in {found["metadata"]["name"] for found in run.objects}
    alone, beside = render("base").containers["envserver"].spec, run.containers["envserver"].spec
    same = {"name", "image", "imagePullPolicy", "resources", "securityContext"}
    assert {key: beside[key] for key in same} == {key: alone[key] for key in same}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert beside[probe] | {"httpGet": alone[probe]["httpGet"]} == alone[probe]


def test_fused_is_a_learner_and_workers_that_act_on_the_cpu(tmp_path: Path) -> None:
    run = render_own(tmp_path, ["gpu", "fused"])
    assert [pod.name for pod in run.pods] == ["worker", "learner"]
    assert set(run.names("Service")) == {"learner"}
    learner, worker = run.containers["learner"], run.containers["worker"]
    assert (learner.environ["BEAST_LEARNER__DEVICE"], worker.environ["BEAST_BROKER__DEVICE"]) == ("cuda", "cpu")
    requests = [quantity(each.spec["resources"]["requests"]["cpu"]) for each in (worker, learner)]
    assert requests[0] < requests[1], "on a full node cores are divided as requested, and the learner comes first"
    same = {"imagePullPolicy", "securityContext", "volumeMounts", "envFrom"}
    actor = render("overlays/gpu").containers["actor"]
    assert {key: worker.spec[key] for key in same} == {key: actor.spec[key] for key in same}
    assert worker.environ.items() >= {"BEAST_ACTOR__CONNECT_TIMEOUT_S": "31536000"}.items()


def test_an_evaluator_is_beside_the_learner_has_its_folder_and_gives_way_to_it() -> None:
    run = render("overlays/evaluator")
    (learner, evaluator) = next(pod.containers for pod in run.pods if pod.name == "learner")
    assert (learner.process, evaluator.process) == ("learner", "evaluator"), "kubectl takes the first one by default"
    assert learner.mounts == evaluator.mounts
    assert learner.environ.items() >= {"BEAST_EVALUATE__TIMES": "20"}.items(), "both have to agree on the steps"
    requests = [quantity(each.spec["resources"]["requests"]["cpu"]) for each in (evaluator, learner)]
    assert requests[0] <= 0.1 * requests[1]


def test_every_overlay_is_the_base_and_one_component() -> None:
    assert sorted(folder.name for folder in (KUBERNETES / "components").iterdir()) == sorted(ORDER)
    for name in ORDER:
        written = yaml.safe_load((KUBERNETES / "overlays" / name / "kustomization.yaml").read_text(encoding="utf-8"))
        assert written["resources"] == ["../../base"]
        assert written["components"] == [f"../../components/{name}"]


def test_the_readmes_example_moves_namespace_and_images(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(# .*?kustomization\.yaml\n.*?)```", README, re.DOTALL)
    written = yaml.safe_load(example)
    assert written.pop("resources") == ["../../base"]
    components = [Path(path).name for path in written.pop("components")]
    images = {Path(image["name"]).name: f"{image['newName']}:{image['newTag']}" for image in written["images"]}
    assert set(images) == set(IMAGES)
    moved = {key: written[key] for key in ("namespace", "images")}
    (tmp_path / "all").mkdir()
    for run in (render_own(tmp_path, components, **written), render_own(tmp_path / "all", ORDER, **moved)):
        assert {name: each.spec["image"] for name, each in run.containers.items()} == {
            name: images[each.process] for name, each in run.containers.items()
        }
        assert {found["metadata"].get("namespace") for found in run.objects} == {written["namespace"]}
