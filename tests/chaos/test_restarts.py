"""Every service is killed in the middle of training and started again by hand: training goes on as if nothing was."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from common.config.tree import RunConfig
from common.messages import Kind
from common.transport import Context, WeightsSubscriber
from tests.helpers import wait_until

pytestmark = pytest.mark.chaos

ROOT = Path(__file__).parents[2]
ROLES = ("learner", "broker", "envserver", "actor")
TO_SEE_S = 90.0
ENOUGH_UPDATES = 60  #: more than what was under way when a service died can make


class Run:
    """The four services of a tiny run, each a process of its own that anybody may kill."""

    def __init__(self, folder: Path, context: Context, **learner: Any) -> None:
        self.folder = folder
        tree = {
            "name": "run",
            "root": str(folder),
            "total_steps": 10**9,
            "env": {"id": "CartPole-v1"},
            "net": {"torso": "mlp", "hidden_size": 8, "use_lstm": True, "lstm_size": 4},
            "envserver": {"endpoint": f"ipc://{folder}/e"},
            "actor": {"env_groups": 2, "envs_per_group": 2},
            "broker": {"endpoint": f"ipc://{folder}/b", "device": "cpu", "precision": "float32"},
            "learner": {"endpoint": f"ipc://{folder}/l", "device": "cpu", "precision": "float32"}
            | {"unroll_length": 5, "batch_size": 4, "window": 2, "log_every_s": 0.2}
            | learner,
        }
        self.config = RunConfig.model_validate(tree)
        (folder / "run.yaml").write_text(json.dumps(tree))  # JSON is YAML
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.weights = WeightsSubscriber(context, self.config.learner.endpoint)
        self.versions: list[tuple[int, int]] = []  #: (epoch of the learner, version), as they came
        for role in ROLES:
            self.start(role)

    def start(self, role: str) -> None:
        status = self.folder / f"{role}.json"
        status.unlink(missing_ok=True)
        command = [sys.executable, "-m", f"services.{role}", "--config", self.folder / "run.yaml"]
        with (self.folder / f"{role}.log").open("ab") as log:
            self.processes[role] = subprocess.Popen(
                [*map(str, command), "--index", "0", "--status-file", str(status)],
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=dict(os.environ) | {"PYTHONPATH": str(ROOT)},
            )

    def kill(self, role: str) -> None:
        process = self.processes[role]
        process.send_signal(signal.SIGKILL)
        assert process.wait(20) == -signal.SIGKILL, self.log(role)

    def page(self, role: str) -> dict[str, Any]:
        """What the health page says; empty while there is none. No service may have ended by itself."""
        for each, process in self.processes.items():
            assert process.poll() is None, f"{each} has ended:\n{self.log(each)}"
        self.listen()
        try:
            status = json.loads((self.folder / f"{role}.json").read_text())
            with urllib.request.urlopen(f"http://{status['health']}/healthz", timeout=10) as answer:
                page: dict[str, Any] = json.load(answer)
        except (OSError, urllib.error.URLError):
            return {}
        return page

    def listen(self) -> None:
        """Note the versions of the weights that came."""
        while message := self.weights.receive():
            assert message.header.kind is Kind.WEIGHTS
            self.versions.append((message.header.epoch, message.header.body[0]))

    def updates(self) -> int:
        return int(self.page("learner").get("updates", 0))

    def log(self, role: str) -> str:
        return (self.folder / f"{role}.log").read_text(errors="replace")[-3000:]

    def close(self) -> None:
        self.weights.close()
        for process in self.processes.values():
            process.kill()
            process.wait(20)


@pytest.fixture
def run(tmp_path: Path, context: Context, request: pytest.FixtureRequest) -> Iterator[Run]:
    run = Run(tmp_path, context, **getattr(request, "param", {"checkpoint_every_s": 0.2}))
    yield run
    run.close()


def in_order(run: Run) -> None:
    """Versions only grow within an epoch, rollouts came whole and one after the other, and so did the metrics."""
    newest: dict[int, int] = {}
    for epoch, version in run.versions:
        assert version >= newest.get(epoch, 0), run.versions
        newest[epoch] = version
    epochs = [epoch for epoch, _ in run.versions]
    assert len({*epochs}) == 1 + sum(a != b for a, b in pairwise(epochs)), "no epoch comes back"
    for role in ROLES:
        page = run.page(role)
        assert page["state"] == "ready"
        unknown = page.get("refused_by_reason", {}).get("session", 0)  # those who do not know yet that it restarted
        assert page["refused"] == unknown, page
    learner, actor = run.page("learner"), run.page("actor")
    assert learner["agent_steps"] == learner["updates"] * 4 * 5, "every batch is of whole rollouts"
    assert actor["unacked"] <= 2 * run.config.learner.window
    lines = (run.config.folder / "metrics.csv").read_text().splitlines()
    steps = [int(line.split(",")[1]) for line in lines[1:] if line.count(",") == lines[0].count(",")]
    assert steps == sorted(steps)


@pytest.mark.parametrize("role", ROLES)
def test_training_goes_on_when_a_service_is_killed_and_started_again(run: Run, role: str) -> None:
    checkpoint = run.config.folder / "checkpoint.pt"
    wait_until(lambda: run.updates() >= ENOUGH_UPDATES and checkpoint.exists(), TO_SEE_S)
    before = run.updates()
    run.kill(role)
    run.start(role)
    first = wait_until(lambda: run.page(role).get("state") == "ready" and run.page("learner"), TO_SEE_S)
    assert first["updates"] > 0, "a learner continues from its checkpoint"
    assert role == "learner" or first["updates"] >= before
    wait_until(lambda: run.updates() >= first["updates"] + ENOUGH_UPDATES, TO_SEE_S)
    in_order(run)
    assert len({epoch for epoch, _ in run.versions}) == (2 if role == "learner" else 1)


@pytest.mark.parametrize("run", [{"checkpoint_every_s": 1000.0}], indirect=True)
def test_training_begins_anew_when_all_that_knew_weights_is_killed_before_the_first_checkpoint(run: Run) -> None:
    wait_until(lambda: run.updates() >= ENOUGH_UPDATES, TO_SEE_S)
    for role in ("broker", "learner"):
        run.kill(role)
    for role in ("broker", "learner"):
        run.start(role)
    wait_until(lambda: run.updates() >= ENOUGH_UPDATES, TO_SEE_S)
    in_order(run)
