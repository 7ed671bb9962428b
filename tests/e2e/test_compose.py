"""Images and compose with a real Docker engine: up, healthy, scaled, killed, stopped, continued."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.compose_project import BASE, FUSED, Project, docker, needs_docker
from tests.helpers import ROOT, wait_until
from zerobeast.common.files import run_files
from zerobeast.common.process.roles import IMAGES, ROLES

pytestmark = [needs_docker, pytest.mark.timeout(1500)]

PYTHON = "python:3.11-slim-bookworm"
SETTINGS = {"BEAST_NAME": "cartpole", "BEAST_ENV__ID": "CartPole-v1", "BEAST_TOTAL_STEPS": "1000000000"}
ENVS = 128  #: environments that an actor drives on CartPole
MB = 1_000_000


@pytest.fixture(scope="module")
def project(images: None) -> Iterator[Project]:
    """A run that trains on CartPole, with every container healthy."""
    project = Project(f"zerobeast-test-{os.getpid()}", SETTINGS)
    try:
        project.compose("up", "--detach", "--wait", "--wait-timeout", "180")
        yield project
    finally:
        project.down()


def steps(project: Project) -> float:
    return project.total("learner", "agent_steps")


def trains_on(project: Project) -> None:
    """Wait until the learner has used rollouts that came after now."""
    before = wait_until(lambda: steps(project), 60)
    wait_until(lambda: steps(project) > before, 60)


def recovers(project: Project) -> None:
    wait_until(lambda: project.health()["healthy"], 90)
    trains_on(project)


def dies(container: str) -> None:
    """Kill the process of a container, and wait until Docker has started another."""
    started = docker("inspect", "-f", "{{.State.StartedAt}}", container)
    docker("exec", container, "sh", "-c", "kill -9 $(cat /proc/1/task/1/children)")  # process 1 is tini
    wait_until(lambda: docker("inspect", "-f", "{{.State.StartedAt}}", container) != started, 60)


def envs(project: Project) -> tuple[float, float]:
    return project.total("actor", "envs"), project.total("envserver", "envs")


@pytest.mark.parametrize("role", IMAGES)
def test_images_run_as_any_user_report_what_is_wrong_and_are_no_larger_than_they_need(images: None, role: str) -> None:
    assert docker("image", "inspect", "-f", "{{.Config.User}}", f"zerobeast/{role}").strip() == "1000:1000"
    wrong = ["run", "--rm", "--read-only", "-e", "BEAST_SEED=minus", f"zerobeast/{role}"]
    (line,) = docker(*wrong, check=False).splitlines()
    assert "BEAST_SEED" in line
    if role in ("envserver", "actor"):
        torch = ["run", "--rm", "--entrypoint", "python", f"zerobeast/{role}", "-c", "import torch"]
        assert "No module named 'torch'" in docker(*torch, check=False)
        sizes = (docker("image", "inspect", "-f", "{{.Size}}", name) for name in (PYTHON, f"zerobeast/{role}"))
        base, image = map(int, sizes)
        assert image - base <= 400 * MB


def test_all_are_healthy_train_and_are_scaled(project: Project) -> None:
    assert {entry["Health"] for entry in project.containers()} == {"healthy"}
    trains_on(project)
    assert (project.health()["code"], project.health()["healthy"], envs(project)) == (0, True, (ENVS, ENVS))
    more, fewer = (
        [text for role in ROLES if role != "learner" for text in ("--scale", f"{role}={many}")] for many in (2, 1)
    )
    project.compose("up", "--detach", "--no-recreate", *more)
    wait_until(lambda: envs(project) == (2 * ENVS, 2 * ENVS), 60)
    wait_until(lambda: [page.get("clients") for page in project.pages("broker")] == [2, 2], 60)
    project.compose("up", "--detach", "--no-recreate", *fewer)
    wait_until(lambda: envs(project) == (ENVS, ENVS), 60)
    trains_on(project)
    assert project.total("learner", "refused") == 0


def test_services_that_die_are_started_again_and_the_run_goes_on(project: Project) -> None:
    for role in ROLES:
        dies(project.containers(role)[0]["Name"])
    recovers(project)


def test_stopping_leaves_a_checkpoint_from_which_up_continues(project: Project) -> None:
    project.compose("stop")
    assert {entry["ExitCode"] for entry in project.containers()} == {0}
    found = project.health()
    assert found["code"] == 2
    assert "unhealthy" in found["verdict"]
    logs = project.compose("logs", "--no-color", "learner").stdout
    project.compose("up", "--detach", "--wait", "--wait-timeout", "120")
    trains_on(project)
    assert "continuing" in project.compose("logs", "--no-color", "learner").stdout[len(logs) :]
    project.down()  # it would take the cores of whatever is tested next


@pytest.mark.nightly
def test_a_learner_ends_once_all_is_evaluated_by_an_env_server_apart_and_the_images_record(images: None) -> None:
    short = {"BEAST_TOTAL_STEPS": "8192", "BEAST_EVALUATE__TIMES": "2", "COMPOSE_PROFILES": "evaluate"}
    project = Project(f"zerobeast-evaluate-{os.getpid()}", SETTINGS | short, [BASE, FUSED])
    once = ["run", "--rm", "--no-deps", "--entrypoint"]
    try:
        project.compose("up")
        ended = {entry["Service"]: entry["ExitCode"] for entry in project.containers()}
        assert ended == dict.fromkeys(("learner", "worker", "evaluator", "evaluator-envs"), 0)
        assert "x CartPole-v1" in project.compose("logs", "--no-color", "evaluator-envs").stdout
        project.compose(*once, "python", "evaluator", "-m", "zerobeast", "record", "cartpole", "--max_steps", "50")
        listed = [*once, "sh", "learner", "-c", "cd /app/runs/cartpole; wc -l < evaluations.csv; find . -type f"]
        rows, *files = project.compose(*listed).stdout.split()
        assert int(rows) == 1 + 2
        waiting = [file for file in map(Path, files) if file.parent.name == run_files.TO_EVALUATE]
        assert [file.name for file in waiting] == [".lock"], "none waits; that is the lock of the table"
        assert len([file for file in files if file.endswith(".mp4")]) == 1
        found = project.health()
        assert (found["code"], found["verdict"]) == (0, "finished: the run has reached its last step")
        again = project.compose("up")  # which ends, with code 0
        assert "all 8192 agent steps are done" in again.stdout + again.stderr
        Project(project.name, SETTINGS).compose("down")
        assert not project.containers("worker"), "those of fused.yml too"
    finally:
        project.down()


def test_a_package_in_images_made_from_ours_trains(images: None) -> None:
    files = [BASE, FUSED, str(ROOT / "docs/examples/own_everything/compose.yml")]
    project = Project(f"zerobeast-own-{os.getpid()}", {"BEAST_NAME": "point", "BEAST_TOTAL_STEPS": "2048"}, files)
    try:
        project.compose("build")
        project.compose("up", "--no-build", "--exit-code-from", "learner")
        assert "all 2048 agent steps are done" in project.compose("logs", "--no-color", "learner").stdout
    finally:
        project.down()
