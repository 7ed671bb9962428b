"""Evaluations and recordings: they play as the env-server does, also what never ends or takes long to be made."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

import zerobeast as zb
from tests.build.envs import ON_PURPOSE
from tests.build.folders import policy_run
from tests.build.odd import DRAWN, ODD
from tests.build.planes import run_env_server
from tests.helpers import free_port, poll, wait_until
from zerobeast.cli import evaluate
from zerobeast.cli.record import main
from zerobeast.common.config.load import load_config
from zerobeast.common.config.process import Instance
from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import ConfigError, EnvError, PeerLost
from zerobeast.common.files import evaluations, run_files
from zerobeast.common.settings import EnvConfig, RunConfig
from zerobeast.common.transport import make_keys
from zerobeast.playing.play import play
from zerobeast.playing.policy import Policy
from zerobeast.playing.video import record_video
from zerobeast.services.envserver import atari
from zerobeast.services.envserver.env_check import check_env
from zerobeast.services.envserver.frames import Frames
from zerobeast.services.envserver.rendering import RenderedEnv
from zerobeast.services.evaluator import service
from zerobeast.services.evaluator.service import Evaluator
from zerobeast.testing.sessions import session


def policy_for(
    folder: Path, env_id: str, algo: str = "impala", actions: str = "greedy", **env: Any
) -> tuple[Policy, RunConfig]:
    """A fresh policy of an environment, and settings under which it plays up to 5 steps."""
    config = EnvConfig.model_validate({"id": env_id, **env})
    spec, *_ = check_env(RunConfig(env=config), env_id)
    policy = zb.load(policy_run(folder, algo, spec.for_policies(), "--net.hidden_size=8"))
    evaluate = policy.config.evaluate.model_copy(update={"max_steps": 5, "episodes": 1, "actions": actions})
    return policy, policy.config.model_copy(update={"env": config, "evaluate": evaluate})


@pytest.mark.parametrize(
    ("env_id", "actions", "episodes", "sizes"),
    [
        ("CartPole-v1", "sampled", 1, {"pad_obs": [6], "pad_actions": 3}),
        ("ALE/Freeway-v5", "greedy", 1, {}),
        ("Pendulum-v1", "greedy", 2, {}),  # those of several environments
    ],
)
def test_it_plays_as_evaluators_do(
    tmp_path: Path, env_id: str, actions: str, episodes: int, sizes: dict[str, Any]
) -> None:
    policy, config = policy_for(tmp_path, env_id, actions=actions, **sizes)
    steps: list[tuple[int, int]] = []
    path = tmp_path / "videos" / "x.mp4"
    found = record_video(policy, config, path, episodes=episodes, watch=lambda *at: steps.append(at))
    config = config.model_copy(update={"evaluate": config.evaluate.model_copy(update={"episodes": episodes})})
    with run_env_server(endpoint := f"ipc://{tmp_path}/envs"):
        played = play(policy, config, endpoint)
    assert played.deterministic == (actions == "greedy")
    assert found.returns == pytest.approx(played.returns, rel=1e-4)
    assert (found.lengths, sum(found.bounded)) == (played.lengths, played.bounded)
    assert (steps[0], steps[-1]) == ((1, 1), (episodes, found.lengths[-1]))
    if episodes == 2:
        with av.open(str(path)) as container:
            frames = sum(1 for _ in container.decode(video=0))
        assert frames == episodes * (5 + 45), "each step, and 1.5 s for each end"


def test_an_environment_that_fails_leaves_no_video(tmp_path: Path) -> None:
    policy, config = policy_for(tmp_path, DRAWN, kwargs={"raise_at": 3})
    with pytest.raises(EnvError):
        record_video(policy, config, tmp_path / "videos" / "x.mp4")
    assert not list(tmp_path.glob("videos/*"))


def test_the_command_reports_what_it_has_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy_for(tmp_path, "CartPole-v1", "ppo")
    run = tmp_path / "run"
    assert main([str(run), "--episodes", "2", "--max_steps", "5"]) == 0
    assert re.search(r"episode 2: return 5.00, 5 agent steps\n2 of them cut off", capsys.readouterr().out)
    assert [path.name for path in (run / "videos").iterdir()] == ["0.mp4"]
    gif = zb.record(run, tmp_path / "x.gif", deterministic=True, evaluate={"max_steps": 5, "seed": 3})
    assert gif.read_bytes().startswith(b"GIF")
    shutil.copy(run / "checkpoint.pt", run / "parent.pt")
    main([str(run / "parent.pt"), "--sample", "--max_steps", "5"])
    assert (run / "parent-0-sampled.mp4").exists(), "not among the videos of the run, whose policy it is not"
    for wrong in (["--out", "x.avi"], ["--greedy", "--sample"]):
        with pytest.raises(ConfigError, match=wrong[-1]):
            main([str(run), *wrong])


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


SEED = 7


@contextmanager
def rendered(env_id: str, **settings: Any) -> Iterator[RenderedEnv]:
    with closing(RenderedEnv(EnvConfig.model_validate({"id": env_id, **settings}), 60.0)) as env:
        env.reset(SEED)
        yield env


@pytest.mark.parametrize(
    ("env_id", "count", "settings"),
    [
        ("ALE/Breakout-v5", 300, {"frame_skip": 3, "max_episode_frames": 400}),  # sticky actions, over the end of games
        ("MinAtar/Breakout-v1", 30, {}),
        ("zipf/Gridworld-small", 60, {}),
        ("envpool/MiniGrid-Empty-Random-5x5-v0", 30, {}),
        ("Pendulum-v1", 20, {}),
    ],
)
def test_it_steps_as_the_environment_of_the_env_server(env_id: str, count: int, settings: dict[str, Any]) -> None:
    ends = 0
    with rendered(env_id, **settings) as env, session(env_id, settings, envs=1, seed=SEED) as other:
        other.reset()
        assert env.spec == other.env.spec
        for actions in (other.draw() for _ in range(count)):
            assert np.array_equal(env.rows, other.rows)
            env.step(lambda into, actions=actions: np.copyto(into, actions))  # type: ignore[misc]
            other.step(actions)
            ends += int(env.rows["terminated"][0] | env.rows["truncated"][0])
        assert np.array_equal(env.rows, other.rows)
        assert env.scene.picture.shape[2] == 3
        if "MinAtar" in env_id:
            assert env.scene.names == ["no-op", "left", "right"]
            assert env.scene.picture.max() > 1, "its reals up to 1 are bytes up to 255"
    assert ends or "Breakout" not in env_id


def test_an_emulator_that_goes_another_way_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    env = atari.RenderedAtari(Frames(id="ALE/Pong-v5"), SEED)
    env.reset()
    env.twin.reset(seed=np.array([SEED + 1]))
    with pytest.raises(EnvError, match="emulators"):
        [env.step(np.array([2])) for _ in range(200)]
    env.close()


@pytest.mark.skipif(find_library("EGL") is None, reason="there is no libEGL, as Debian's libegl1 brings it")
def test_mujoco_draws_without_a_display(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    with rendered("InvertedPendulum-v5", kwargs={"width": 64, "height": 48}) as env:
        assert (env.scene.picture.shape, env.scene.fps) == ((48, 64, 3), 25.0)
        assert env.scene.picture.std() > 1
    assert "MUJOCO_GL" not in os.environ


@pytest.mark.parametrize(
    ("env_id", "kwargs", "named"),
    [
        (DRAWN, {}, "returned None"),
        (ODD, {"at": -1}, "render_mode"),
        (DRAWN, {"die_at": 2}, "process ended"),
        (DRAWN, {"raise_at": 2}, ON_PURPOSE),
        ("football/5_vs_5", {}, "gfootball/5_vs_5"),
        ("envpool/Taxi-v3", {}, "RuntimeError"),
    ],
)
def test_what_cannot_be_drawn_or_fails_is_refused(env_id: str, kwargs: dict[str, Any], named: str) -> None:
    with pytest.raises(EnvError, match=named), rendered(env_id, kwargs=kwargs) as env:
        [env.step(lambda into: into.fill(0)) for _ in range(5)]


ENDLESS = "tests.build.envs:Endless"


def run_in(root: Path, env_id: str) -> Path:
    """A run in this environment, whose policy has learned nothing."""
    spec, *_ = check_env(RunConfig(env=EnvConfig.model_validate({"id": env_id})), env_id)
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
    assert found["seed"] != load_config(["--config", str(run / run_files.CONFIG), "--env", ENDLESS], {}).evaluation_seed
    steps = [int(each.replace(",", "")) for each in re.findall(r"^0 of 20 episodes, (\S+) agent steps$", lines, re.M)]
    assert steps, lines
    assert steps == sorted(set(steps))
    assert evaluate.main([str(run), "--env", ENDLESS, "--episodes", "1", "--max_steps", "5"]) == 0
    assert re.search(r"1 cut off.*\n.*from 5\.00 to 5\.00\n", capsys.readouterr().out)


def test_an_evaluator_waits_longer_for_environments_than_training_does(tmp_path: Path) -> None:
    run = run_in(tmp_path, ODD)
    slow = ["--env", ODD, "--env.kwargs", "{make_s: 1.5, at: 1, ends: true}", "--envserver.step_timeout_s", "0.5"]
    config = load_config(["--config", str(run / run_files.CONFIG), *slow, "--evaluate.episodes", "1"], {})
    with closing(Evaluator(config, Instance())) as evaluator:
        evaluator.open()
        (run / run_files.CHECKPOINT).rename(run / run_files.TO_EVALUATE / "0.pt")
        wait_until(lambda: poll(evaluator, 0.01) or evaluator.report()["evaluations"] or evaluator.report()["trouble"])
        assert evaluator.report()["trouble"] == ""
    assert len(evaluations.read_evaluations(run)) == 1


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
    monkeypatch.setattr(Endpoint, "resolve", resolved)
    make_keys(tmp_path / "keys")
    run, keys = run_in(tmp_path, "CartPole-v1"), str(tmp_path / "keys")
    flags = ["--env", "CartPole-v1", "--evaluate.episodes", "2", "--evaluate.max_steps", "20", "--security.keys", keys]
    config = load_config(["--config", str(run / run_files.CONFIG), *flags], {})
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    elsewhere = Instance(env_server=endpoint)
    with run_env_server(endpoint, keys=keys) as server, closing(Evaluator(config, elsewhere)) as evaluator:
        evaluator.open()
        (run / run_files.CHECKPOINT).rename(run / run_files.TO_EVALUATE / "0.pt")
        wait_until(lambda: poll(evaluator, 0.01) or not evaluator.report()["evaluations_waiting"])
        found = evaluator.report()
        assert (found["evaluations"], found["evaluations_failed"]) == (1, service.MAX_TRIES + 1)
    assert server.report()["agent_steps"] > 0
    drawn = config.model_copy(update={"evaluate": config.evaluate.model_copy(update={"video_every": 1})})
    with closing(Evaluator(drawn, elsewhere)) as evaluator, pytest.raises(ConfigError, match="video_every"):
        evaluator.open()
