"""`beast health --kubernetes`, with a `kubectl` that prints what the real one prints."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from zerobeast.cli.health import main
from zerobeast.common.errors import ConfigError
from zerobeast.common.process.roles import HOSTED

SELECTOR = "--selector=app.kubernetes.io/part-of=zerobeast"
SELECTOR += " --field-selector=status.phase!=Failed,status.phase!=Succeeded --output json"
RUNNING = {"running": {"startedAt": "2026-01-05T10:00:00Z"}}
UNKNOWN_NAMESPACE = {"apiVersion": "v1", "items": [], "kind": "List", "metadata": {"resourceVersion": ""}}
ASIDE = {
    "name": "envserver",
    "restartPolicy": "Always",
    "image": "zerobeast/envserver:0.1.0",
}
UNSCHEDULED = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        }
    ],
}
KUBECTL = """#!/bin/sh
file="$ANSWERS/$(printf %s "$*" | tr / _)"
[ -e "$file" ] || { echo "error: unexpected: $*" >&2; exit 1; }
cat "$file"
[ ! -e "$file.err" ] || { cat "$file.err" >&2; exit 1; }
"""


class Cluster:
    """What `kubectl` will be asked, and its answers."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        (folder / "kubectl").write_text(KUBECTL)
        (folder / "kubectl").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        monkeypatch.setenv("ANSWERS", str(folder))

    def answers(self, command: str, text: str, error: str = "") -> None:
        file = self._folder / command.replace("/", "_")
        file.write_text(text)
        if error:
            file.with_name(f"{file.name}.err").write_text(f"{error}\n")

    def holds(self, *pods: dict[str, Any], namespace: str = "zerobeast") -> None:
        listing = json.dumps({**UNKNOWN_NAMESPACE, "items": pods}, indent=4)
        self.answers(f"get pods --namespace {namespace} {SELECTOR}", listing)

    def serves(self, pod: str, role: str, *, namespace: str = "zerobeast", ready: bool = True, **page: Any) -> None:
        page = {"state": "ready" if ready else "starting", "loop_age_s": 0.1, **page}
        services = [{"name": each, "role": each, "page": {"role": each, **page}} for each in HOSTED[role]]
        answer = json.dumps({"verdict": "", "healthy": ready, "services": services})
        asked = f"exec --namespace {namespace} {pod} --container {role} -- "
        asked += f"python -m zerobeast.services.{role} health --json"
        self.answers(asked, answer, "" if ready else "command terminated with exit code 1")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(tmp_path, monkeypatch)


def pod(name: str, role: str, state: dict[str, Any] = RUNNING, *, last: dict[str, Any] | None = None) -> dict[str, Any]:
    """A pod as the API server describes it, without fields that are never read."""
    status = {"name": role, "ready": state is RUNNING, "restartCount": 0, "state": state, "lastState": last or {}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "zerobeast"},
        "spec": {"containers": [{"name": role, "image": f"zerobeast/{role}:0.1.0"}]},
        "status": {"phase": "Running", "containerStatuses": [status]},
    }


def whole_run(cluster: Cluster, **learner: Any) -> list[dict[str, Any]]:
    pods = {
        "learner": "learner-0",
        "broker": "broker-0",
        "envserver": "envserver-6d4b-x7k2p",
        "actor": "actor-59c8-zt4wq",
    }
    for role, name in pods.items():
        cluster.serves(name, role, **(learner if role == "learner" else {}))
    return [pod(name, role) for role, name in pods.items()]


def shown(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, Any]]:
    code = main(["--kubernetes", "--json", *flags])
    return code, json.loads(capsys.readouterr().out)


def test_a_run_in_a_cluster_is_shown_like_a_local_one(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.holds(*whole_run(cluster, agent_steps=20, total_steps=20))
    code, found = shown(capsys)
    assert code == 0
    assert found["verdict"].startswith("finished: ")
    assert [each["name"] for each in found["services"]] == ["actor zt4wq", "broker 0", "envserver x7k2p", "learner 0"]
    assert found["services"][3]["page"]["agent_steps"] == 20


def test_an_env_server_beside_an_actor_is_a_service_of_its_own(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    both = pod("actor-59c8-zt4wq", "actor")
    both["spec"]["initContainers"] = [ASIDE]
    both["status"]["initContainerStatuses"] = [{"name": "envserver", "state": RUNNING, "lastState": {}}]
    for role in ("actor", "envserver"):
        cluster.serves("actor-59c8-zt4wq", role)
    cluster.holds(both)
    _, found = shown(capsys)
    assert [each["name"] for each in found["services"]] == ["actor zt4wq", "envserver zt4wq"]
    assert "no learner and no broker answers" in found["verdict"]


def test_a_worker_is_shown_as_the_three_services_that_it_hosts(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.serves("learner-0", "learner", agent_steps=20, total_steps=20)
    cluster.serves("worker-59c8-zt4wq", "worker")
    ended = {"terminated": {"exitCode": 2, "reason": "Error"}}
    both = [pod("learner-0", "learner"), pod("worker-59c8-zt4wq", "worker")]
    cluster.holds(*both)
    code, found = shown(capsys)
    assert (code, found["verdict"].partition(":")[0]) == (0, "finished")
    names = [each["name"] for each in found["services"]]
    assert names == ["learner 0", "broker zt4wq", "envserver zt4wq", "actor zt4wq"]
    cluster.holds(*both, pod("worker-59c8-x7k2p", "worker", ended))
    cluster.answers("logs --namespace zerobeast worker-59c8-x7k2p --container worker --tail 1", "why\n")
    code, found = shown(capsys, "actor")
    assert (code, [(each["state"], each["note"]) for each in found["services"]]) == (
        1,
        [("ended (2)", "why"), ("ready", "")],
    )


def test_a_pod_that_does_not_run_is_shown_with_the_reason(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    backing_off = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}}
    pulling = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "zerobeast/broker:2"'}}
    sentence = "learner: environment BEAST_SEED: got 'minus', expected an integer"
    unscheduled = pod("envserver-6d4b-x7k2p", "envserver") | {"status": UNSCHEDULED}
    cluster.holds(
        pod("learner-0", "learner", backing_off, last={"terminated": {"exitCode": 2, "reason": "Error"}}),
        pod("broker-0", "broker", pulling),
        unscheduled,
        pod("actor-59c8-zt4wq", "actor", {"terminated": {"exitCode": 0, "reason": "Completed"}}),
    )
    logs = "logs --namespace zerobeast {0} --container {1} --tail 1{2}"
    cluster.answers(logs.format("learner-0", "learner", " --previous"), f"{sentence}\n")
    cluster.answers(logs.format("actor-59c8-zt4wq", "actor", ""), "")
    code, found = shown(capsys)
    assert code == 2
    said = {each["role"]: (each["state"], each["note"]) for each in found["services"]}
    assert said == {
        "learner": ("ended (2)", sentence),
        "broker": ("no answer", 'ImagePullBackOff: Back-off pulling image "zerobeast/broker:2"'),
        "envserver": ("no answer", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."),
        "actor": ("ended", ""),
    }


def test_a_service_that_is_not_ready_is_shown_although_its_command_fails(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.serves("broker-0", "broker", ready=False)
    cluster.holds(pod("broker-0", "broker"))
    code, found = shown(capsys, "broker")
    assert (code, found["services"][0]["state"]) == (1, "starting")


def test_a_namespace_is_enough_to_find_a_run(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    there = pod("broker-0", "broker")
    there["metadata"]["namespace"] = "breakout-1"
    cluster.holds(there, namespace="breakout-1")
    cluster.serves("broker-0", "broker", namespace="breakout-1")
    assert main(["-n", "breakout-1", "broker"]) == 0
    assert "broker 0" in capsys.readouterr().out


def test_a_missing_run_or_cluster_is_reported_in_one_sentence(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.holds()
    with pytest.raises(ConfigError, match="no pod of a run in namespace zerobeast: `kubectl apply -k` starts one"):
        main(["--kubernetes"])
    refused = "The connection to the server localhost:8080 was refused - did you specify the right host or port?"
    tried = 'E1123 08:31:20.082942    8003 memcache.go:265] "Unhandled Error" err="couldn\'t get current server API'
    cluster.answers(f"get pods --namespace there {SELECTOR}", "", f"{tried}\n{refused}")
    with pytest.raises(ConfigError, match=f"kubectl get pods: {refused[:-1]}"):
        main(["-n", "there"])
    cluster.answers(f"get pods --namespace proxy {SELECTOR}", "<html>")
    with pytest.raises(ConfigError, match="expected a list of pods, got '<html>'"):
        main(["-n", "proxy"])
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="kubectl is not installed here"):
        main(["--kubernetes"])
