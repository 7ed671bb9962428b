"""What the README tells an operator to type and to write does what it says."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import yaml

from tests.unit.kubernetes.manifests import KUBERNETES, ORDER, README, ROOT, needs_kubectl, render, render_own
from zerobeast.common.process.roles import IMAGES

BY_HAND = ("apps/v1/StatefulSet", "broker")  #: deleted by hand, because pruning StatefulSets might delete a learner


@needs_kubectl
def test_objects_that_another_overlay_lacks_are_pruned_but_nothing_that_holds_data() -> None:
    pruned = set(re.findall(r"--prune-allowlist=([\w./]*\w)", README))
    runs = [render("base"), *(render(f"overlays/{name}") for name in ORDER)]
    named = [{(_group(it), it["metadata"]["name"]) for it in run.objects} for run in runs]
    for before, after in itertools.permutations(named, 2):
        gone = {kind for kind, name in before - after if (kind, name) != BY_HAND}
        assert gone - {"core/v1/ConfigMap"} <= pruned
    assert "delete statefulset/broker" in README
    held = {"Namespace", "PersistentVolumeClaim", "StatefulSet", "Secret", "ConfigMap"}
    assert not {kind.rpartition("/")[2] for kind in pruned} & held


def _group(found: dict[str, Any]) -> str:
    return f"{'core/' if found['apiVersion'] == 'v1' else ''}{found['apiVersion']}/{found['kind']}"


def test_every_overlay_is_the_base_and_one_component() -> None:
    assert sorted(folder.name for folder in (KUBERNETES / "components").iterdir()) == sorted(ORDER)
    for name in ORDER:
        written = yaml.safe_load((KUBERNETES / "overlays" / name / "kustomization.yaml").read_text(encoding="utf-8"))
        assert written["resources"] == ["../../base"]
        assert written["components"] == [f"../../components/{name}"]


@needs_kubectl
def test_the_readmes_example_moves_namespace_and_images(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(# .*?kustomization\.yaml\n.*?)```", README, re.DOTALL)
    written = yaml.safe_load(example)
    del written["resources"]
    components = [Path(path).name for path in written.pop("components")]
    images = {Path(image["name"]).name: f"{image['newName']}:{image['newTag']}" for image in written["images"]}
    assert set(images) == set(IMAGES)
    run = render_own(tmp_path, components, **written)
    assert all(each.spec["image"] == images[each.process] for each in run.containers.values())
    assert {found["metadata"].get("namespace") for found in run.objects} == {written["namespace"]}


class Cluster(BaseHTTPRequestHandler):
    """An API server with three workloads, and the health page of a learner that is finished at the third look."""

    looks = 0
    scaled: ClassVar[list[tuple[str, Any]]] = []

    def do_GET(self) -> None:
        if self.path == "/healthz":
            Cluster.looks += 1
            return self.answer({"finished": self.looks > 1, "evaluations_waiting": int(self.looks < 3)})
        kind = self.path.partition("?")[0].rpartition("/")[2]
        names = {"deployments": ["actor"], "statefulsets": ["learner", "other"]}[kind]
        return self.answer({"items": [{"metadata": {"name": name}} for name in names]})

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.scaled.append((self.path.partition("/namespaces/")[2], body["spec"]["replicas"]))
        self.answer({})

    def answer(self, body: dict[str, Any]) -> None:
        assert self.path == "/healthz" or self.headers["Authorization"] == "Bearer secret"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())


def test_a_finished_run_is_scaled_to_zero(tmp_path: Path) -> None:
    *_, job = yaml.safe_load_all((ROOT / "deploy/kubernetes/release.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["env"][0] == {"name": "PAGE", "value": "http://learner-0.learner:8080/healthz"}, "the first rank"
    (tmp_path / "token").write_text("secret")
    (tmp_path / "namespace").write_text("pong-1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Cluster) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        here = f"http://127.0.0.1:{server.server_port}"
        environ = {"PAGE": f"{here}/healthz", "API": here, "ACCOUNT": str(tmp_path), "PERIOD_S": "0"}
        subprocess.run([sys.executable, "-c", *container["args"]], env=environ, timeout=60, check=True)
        server.shutdown()
    assert Cluster.looks == 3
    assert Cluster.scaled == [
        (f"pong-1/{name}/scale", 0) for name in ("deployments/actor", "statefulsets/other", "statefulsets/learner")
    ]
