"""Recordings show what an evaluation plays."""

import re
import shutil
from pathlib import Path
from typing import Any

import av
import pytest

import zerobeast as zb
from tests.build.envservers import running
from tests.build.folders import policy_run
from tests.build.odd import DRAWN
from zerobeast.api.saved import load
from zerobeast.cli.record import main
from zerobeast.clients.policy import Policy
from zerobeast.common.config.process import Instance
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings import EnvConfig
from zerobeast.common.settings.tree import RunConfig
from zerobeast.services.envserver.check import look
from zerobeast.services.evaluator.play import play
from zerobeast.services.evaluator.service import Evaluator
from zerobeast.services.evaluator.video import record


def policy_for(
    folder: Path, env_id: str, algo: str = "impala", actions: str = "greedy", **env: Any
) -> tuple[Policy, RunConfig]:
    """A fresh policy of an environment, and settings under which it plays up to 15 steps."""
    config = EnvConfig(id=env_id, **env)
    spec, *_ = look(RunConfig(env=config), env_id)
    policy = load(policy_run(folder, algo, spec.for_policies(), "--net.hidden_size=8"))
    evaluate = policy.config.evaluate.model_copy(update={"max_steps": 15, "episodes": 1, "actions": actions})
    return policy, policy.config.model_copy(update={"env": config, "evaluate": evaluate})


@pytest.mark.parametrize(
    ("env_id", "actions", "sizes"),
    [
        ("CartPole-v1", "sampled", {"pad_obs": [6], "pad_actions": 3}),
        ("ALE/Freeway-v5", "greedy", {}),
        ("Pendulum-v1", "sampled", {}),
    ],
)
def test_it_plays_what_the_evaluator_plays(tmp_path: Path, env_id: str, actions: str, sizes: dict[str, Any]) -> None:
    policy, config = policy_for(tmp_path, env_id, actions=actions, **sizes)
    found = record(policy, config, tmp_path / "x.mp4")
    with running(endpoint := f"ipc://{tmp_path}/envs"):
        played = play(policy, config, endpoint)
    assert played.deterministic == (actions == "greedy")
    assert (found.returns, found.lengths, sum(found.bounded)) == (played.returns, played.lengths, played.bounded)


def test_several_episodes_are_those_of_several_environments(tmp_path: Path) -> None:
    policy, config = policy_for(tmp_path, "Pendulum-v1", actions="greedy")
    steps: list[tuple[int, int]] = []
    path = tmp_path / "videos" / "x.mp4"
    found = record(policy, config, path, episodes=3, watch=lambda *at: steps.append(at))
    three = config.model_copy(update={"evaluate": config.evaluate.model_copy(update={"episodes": 3})})
    with running(endpoint := f"ipc://{tmp_path}/envs"):
        played = play(policy, three, endpoint)
    assert found.returns == pytest.approx(played.returns, rel=1e-4)
    assert (found.bounded, steps[0], steps[-1]) == ([True] * 3, (1, 1), (3, 15))
    with av.open(str(path)) as container:
        frames = sum(1 for _ in container.decode(video=0))
    assert frames == 3 * (15 + 45), "each step, and 1.5 s for each end"


def test_the_command_reports_what_it_has_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy_for(tmp_path, "CartPole-v1", "ppo")
    run = tmp_path / "run"
    assert main([str(run), "--episodes", "2", "--max_steps", "5"]) == 0
    assert re.search(r"episode 2: return 5.00, 5 agent steps\n2 of them cut off", capsys.readouterr().out)
    assert main([str(run), "--sample", "--max_steps", "5"]) == 0
    assert {path.name for path in (run / "videos").iterdir()} == {"0.mp4", "0-sampled.mp4"}
    gif = zb.record(run, tmp_path / "x.gif", deterministic=True, evaluate={"max_steps": 5, "seed": 3})
    assert gif.read_bytes().startswith(b"GIF")
    shutil.copy(run / "checkpoint.pt", run / "parent.pt")
    main([str(run / "parent.pt"), "--max_steps", "5"])
    assert (run / "parent-0.mp4").exists(), "not among the videos of the run, whose policy it is not"


@pytest.mark.parametrize(
    "flags", [["run", "--out", "x.avi"], ["run", "--greedy", "--sample"], ["run", "--episodes", "0"], ["nowhere"]]
)
def test_flags_and_runs_of_no_use_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    policy_for(tmp_path, "CartPole-v1")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"{flags[-1]}"):
        main(flags)


def evaluator_of(config: RunConfig, every: int) -> Evaluator:
    evaluate = config.evaluate.model_copy(update={"video_every": every})
    evaluator = Evaluator(config.model_copy(update={"evaluate": evaluate}), Instance())
    evaluator.open()
    return evaluator


def test_an_evaluator_records_the_first_episode_of_every_nth_evaluation(tmp_path: Path) -> None:
    policy, config = policy_for(tmp_path, "CartPole-v1")
    evaluator, video = evaluator_of(config, 2), config.folder / "videos" / "0.mp4"
    table, header = config.folder / "evaluations.csv", "agent_steps,env,actions,mean_return\n"
    table.write_text(f"{header}100,CartPole-v1,greedy,1.0\n")  # each is recorded once its row is there
    evaluator.record_video(policy)
    assert not video.exists(), "this is the first"
    table.write_text(f"{header}100,CartPole-v1,greedy,1.0\n200,CartPole-v1,greedy,1.0\n")
    evaluator.record_video(policy)
    assert video.exists()


@pytest.mark.parametrize(("env_id", "stopping"), [(DRAWN, False), ("CartPole-v1", True)])
def test_no_video_costs_an_evaluator_a_line_of_its_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, env_id: str, *, stopping: bool
) -> None:
    policy, config = policy_for(tmp_path, env_id)
    evaluator = evaluator_of(config, 1)
    evaluator.stopping = stopping
    evaluator.record_video(policy)
    (record_of,) = [entry for entry in caplog.records if entry.levelname == "WARNING"]
    assert "no video" in record_of.getMessage()
    assert record_of.exc_info in (None, False)
    assert not list(config.folder.glob("videos/*"))
