"""`beast health --kubernetes` and `--compose`, with a `kubectl` and a `docker` that print what the real ones print."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from zerobeast.cli.health import main
from zerobeast.common.errors import ConfigError
from zerobeast.common.process.roles import ROLES, SERVICES_BY_PROCESS

PODS = "--selector=app.kubernetes.io/part-of=zerobeast"
PODS += " --field-selector=status.phase!=Failed,status.phase!=Succeeded --output json"
RUNNING = {"running": {"startedAt": "2026-01-05T10:00:00Z"}}
#: prints the file whose name is the command, and fails if there is another one for its error
PROGRAM = """#!/bin/sh
file="$ANSWERS/$(printf %s "$*" | tr / _)"
[ -e "$file" ] || { echo "error: unexpected: $*" >&2; exit 1; }
cat "$file"
[ ! -e "$file.err" ] || { cat "$file.err" >&2; exit 1; }
"""


class Cluster:
    """What `kubectl` and `docker` will be asked, and their answers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("kubectl", "docker"):
            (folder / name).write_text(PROGRAM)
            (folder / name).chmod(0o755)

    def answers(self, command: str, text: str, error: str = "") -> None:
        file = self._folder / command.replace("/", "_")
        file.write_text(text)
        if error:
            file.with_name(f"{file.name}.err").write_text(f"{error}\n")

    def holds(self, *pods: dict[str, Any], namespace: str = "zerobeast") -> None:
        self.answers(f"get pods --namespace {namespace} {PODS}", json.dumps({"kind": "List", "items": pods}))

    def serves(self, pod: str, role: str, *, namespace: str = "zerobeast", ready: bool = True, **page: Any) -> None:
        page = {"state": "ready" if ready else "starting", "loop_age_s": 0.1, **page}
        services = [{"name": each, "role": each, "page": {"role": each, **page}} for each in SERVICES_BY_PROCESS[role]]
        answer = json.dumps({"verdict": "", "healthy": ready, "services": services})
        asked = f"exec --namespace {namespace} {pod} --container {role} -- "
        asked += f"python -m zerobeast.services.{role} health --json"
        self.answers(asked, answer, "" if ready else "command terminated with exit code 1")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("ANSWERS", str(tmp_path))
    return Cluster(tmp_path)


def pod(name: str, role: str, state: dict[str, Any] = RUNNING, *, last: dict[str, Any] | None = None) -> dict[str, Any]:
    """A pod as the API server describes it, without fields that are never read."""
    status = {"name": role, "ready": state is RUNNING, "restartCount": 0, "state": state, "lastState": last or {}}
    return {
        "metadata": {"name": name, "namespace": "zerobeast"},
        "spec": {"containers": [{"name": role}]},
        "status": {"phase": "Running", "containerStatuses": [status]},
    }


def shown(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """The exit code, and the state and note of each service."""
    code = main(["--json", *flags])
    found = json.loads(capsys.readouterr().out)["services"]
    return code, {each["name"]: (each["state"], each["note"]) for each in found}


@pytest.mark.parametrize(("flags", "namespace"), [(["--kubernetes"], "zerobeast"), (["-n", "cat"], "cat")])
def test_services_of_pods_are_shown_like_local_ones(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], flags: list[str], namespace: str
) -> None:
    pods = [pod(name, name.partition("-")[0]) for name in ("learner-0", "actor-59c8-zt4wq", "worker-6d4b-x7k2p")]
    pods[1]["spec"]["initContainers"] = [{"name": "envserver", "restartPolicy": "Always"}]
    pods[1]["status"]["initContainerStatuses"] = [{"name": "envserver", "state": RUNNING, "lastState": {}}]
    cluster.serves("actor-59c8-zt4wq", "envserver", namespace=namespace)
    for each in pods:
        each["metadata"]["namespace"] = namespace
        cluster.serves(each["metadata"]["name"], each["spec"]["containers"][0]["name"], namespace=namespace)
    cluster.holds(*pods, namespace=namespace)
    _, states = shown(capsys, *flags)
    of_worker = [f"{role} x7k2p" for role in ("broker", "envserver", "actor")]
    assert states == dict.fromkeys(["actor zt4wq", "envserver zt4wq", "learner 0", *of_worker], ("ready", ""))
    assert [*states][3:] == of_worker


def test_a_pod_that_does_not_run_is_shown_with_the_reason(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    backing_off = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}}
    pulling = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    nowhere = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    ended = {"terminated": {"exitCode": 2, "reason": "Error"}}
    cluster.serves("broker-1", "broker", ready=False)
    cluster.holds(
        pod("learner-0", "learner", backing_off, last=ended),
        pod("broker-0", "broker", pulling),
        pod("broker-1", "broker"),
        pod("envserver-6d4b-x7k2p", "envserver") | {"status": {"phase": "Pending", "conditions": [nowhere]}},
        pod("actor-59c8-zt4wq", "actor", {"terminated": {"exitCode": 0, "reason": "Completed"}}),
        pod("worker-59c8-q2w3e", "worker", ended),
    )
    logs = "logs --namespace zerobeast {0} --container {1} --tail 1{2}"
    cluster.answers(logs.format("learner-0", "learner", " --previous"), "seed: wrong\n")
    cluster.answers(logs.format("actor-59c8-zt4wq", "actor", ""), "")
    cluster.answers(logs.format("worker-59c8-q2w3e", "worker", ""), "why\n")
    assert shown(capsys, "--kubernetes") == (
        1,
        {
            "actor zt4wq": ("ended", ""),
            "broker 0": ("no answer", "ImagePullBackOff: Back-off pulling image"),
            "broker 1": ("starting", ""),
            "envserver x7k2p": ("no answer", "0/3 nodes are available"),
            "learner 0": ("ended (2)", "seed: wrong"),
            **dict.fromkeys([f"{role} q2w3e" for role in ("broker", "envserver", "actor")], ("ended (2)", "why")),
        },
    )


@pytest.mark.parametrize("text", ["<html>", "[]", '{"items": [{}]}', json.dumps({"items": []}), ""])
def test_a_missing_run_or_cluster_is_an_error(cluster: Cluster, text: str) -> None:
    cluster.answers(f"get pods --namespace there {PODS}", text, "" if text else "E1123 tried\nit was refused.")
    with pytest.raises(ConfigError) as caught:
        main(["-n", "there"])
    assert text or str(caught.value).endswith("it was refused."), "the last line alone"


@pytest.mark.parametrize(("flag", "program"), [("--kubernetes", "kubectl"), ("--compose", "docker")])
def test_a_program_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, flag: str, program: str) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match=program):
        main([flag])


@pytest.mark.parametrize(
    ("last", "code", "listed"),
    [("ended as finished: all 300 agent steps are done", 0, False), ("ended as stopped: by SIGTERM", 1, True)],
)
def test_a_project_whose_learner_has_ended_is_finished_if_all_steps_are_done(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], last: str, code: int, *, listed: bool
) -> None:
    entries = [{"Service": role, "Name": f"zerobeast-{role}-1", "State": "running"} for role in ROLES]
    entries[ROLES.index("learner")] |= {"State": "exited", "ExitCode": 0}
    listing = json.dumps(entries) if listed else "\n".join(map(json.dumps, entries))
    cluster.answers("compose ps --all --format json", listing)
    cluster.answers("logs --tail 1 zerobeast-learner-1", f"12:00:00.000 learner I {last}\n")
    found, states = shown(capsys, "--compose")
    assert (min(found, 1), set(states)) == (code, {f"{role} 1" for role in ROLES})
    assert states["learner 1"] == ("ended", f"12:00:00.000 learner I {last}")
