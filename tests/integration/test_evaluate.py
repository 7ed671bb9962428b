"""Evaluations in an environment whose episodes never end, and in one that takes long to be made."""

import json
import re
from contextlib import closing
from pathlib import Path

import pytest

from tests.build.envservers import running
from tests.build.folders import policy_run
from tests.helpers import free_port, poll, wait_until
from zerobeast.cli import evaluate
from zerobeast.common.config.load import load
from zerobeast.common.config.process import Instance
from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import ConfigError, PeerLost
from zerobeast.common.files import evaluations, run_files
from zerobeast.common.settings import EnvConfig, RunConfig
from zerobeast.common.transport import make_keys
from zerobeast.services.envserver.check import look
from zerobeast.services.evaluator import service
from zerobeast.services.evaluator.service import Evaluator

ENDLESS, ODD = "tests.build.envs:Endless", "tests.build.odd:Odd"


def run_in(root: Path, env_id: str) -> Path:
    """A run in this environment, whose policy has learned nothing."""
    spec, *_ = look(RunConfig(env=EnvConfig.model_validate({"id": env_id})), env_id)
    return policy_run(root, "impala", spec.for_policies(), "--net.hidden_size=8")


def test_endless_episodes_are_cut_off_and_meanwhile_there_are_lines_of_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluate, "QUIET_S", 0.0)
    run = run_in(tmp_path, ENDLESS)
    flags = ["--env", ENDLESS, "--episodes", "20", "--max_steps", "50", "--json"]
    assert evaluate.main([str(run), *flags]) == 0
    out, lines = capsys.readouterr()
    found = json.loads(out)
    assert (found["lengths"], found["returns"], found["bounded"]) == ([50] * 16, [50.0] * 16, 16)
    assert found["run"] == run.name
    assert found["seed"] != load(["--config", str(run / run_files.CONFIG), "--env", ENDLESS], {}).evaluation_seed
    steps = [int(each.replace(",", "")) for each in re.findall(r"^0 of 20 episodes, (\S+) agent steps$", lines, re.M)]
    assert steps, lines
    assert steps == sorted(set(steps))
    assert evaluate.main([str(run), "--env", ENDLESS, "--episodes", "1", "--max_steps", "5"]) == 0
    assert re.search(r"1 cut off.*\n.*from 5\.00 to 5\.00\n", capsys.readouterr().out)


def test_an_evaluator_waits_longer_for_environments_than_training_does(tmp_path: Path) -> None:
    run = run_in(tmp_path, ODD)
    slow = ["--env", ODD, "--env.kwargs", "{make_s: 1.5, at: 1, ends: true}", "--envserver.step_timeout_s", "0.5"]
    config = load(["--config", str(run / run_files.CONFIG), *slow, "--evaluate.episodes", "1"], {})
    with closing(Evaluator(config, Instance())) as evaluator:
        evaluator.open()
        (run / run_files.CHECKPOINT).rename(run / run_files.TO_EVALUATE / "0.pt")
        wait_until(lambda: poll(evaluator, 0.01) or evaluator.report()["evaluations"] or evaluator.report()["trouble"])
        assert evaluator.report()["trouble"] == ""
    assert len(evaluations.read(run)) == 1


def test_an_evaluator_plays_in_the_env_server_that_it_is_given_once_that_is_there_and_starts_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(_config: RunConfig) -> str:
        pytest.fail("it has started an env-server")

    def resolved(place: Endpoint) -> Endpoint:
        if next(absent, None):
            raise PeerLost("no pod is ready, so its name does not resolve")
        return place

    absent = iter(range(1, service.MAX_TRIES + 2))
    monkeypatch.setattr(service, "env_server", started)
    monkeypatch.setattr(service, "DISK_S", 0.0)
    monkeypatch.setattr(Endpoint, "resolved", resolved)
    make_keys(tmp_path / "keys")
    run, keys = run_in(tmp_path, "CartPole-v1"), str(tmp_path / "keys")
    flags = ["--env", "CartPole-v1", "--evaluate.episodes", "2", "--evaluate.max_steps", "20", "--security.keys", keys]
    config, endpoint = load(["--config", str(run / run_files.CONFIG), *flags], {}), f"tcp://127.0.0.1:{free_port()}"
    elsewhere = Instance(env_server=endpoint)
    with running(endpoint, keys=keys) as server, closing(Evaluator(config, elsewhere)) as evaluator:
        evaluator.open()
        (run / run_files.CHECKPOINT).rename(run / run_files.TO_EVALUATE / "0.pt")
        wait_until(lambda: poll(evaluator, 0.01) or not evaluator.report()["evaluations_waiting"])
        found = evaluator.report()
        assert (found["evaluations"], found["evaluations_failed"]) == (1, service.MAX_TRIES + 1)
    assert server.report()["agent_steps"] > 0
    drawn = config.model_copy(update={"evaluate": config.evaluate.model_copy(update={"video_every": 1})})
    with closing(Evaluator(drawn, elsewhere)) as evaluator, pytest.raises(ConfigError, match="video_every"):
        evaluator.open()
