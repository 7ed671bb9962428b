"""The run folder: names, the lock, starting over, and what a continued run may not change."""

import errno
import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from zerobeast.common.config.load import dump, load
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import metrics, run_files
from zerobeast.common.files.atomic import write_atomically
from zerobeast.common.settings.tree import RunConfig
from zerobeast.discovery.run import newest
from zerobeast.launcher import run_folder as folder
from zerobeast.launcher.run_folder import claimed, default_name, name_latest, refuse_changes, set_aside
from zerobeast.services.learner.kept import claim

NOW = datetime(2026, 1, 31, 23, 59, 58, tzinfo=UTC)


def config(root: Path | str = "runs", **settings: object) -> RunConfig:
    return RunConfig.model_validate({"root": str(root), **settings})


@pytest.mark.parametrize(
    ("env_id", "name"),
    [
        ("CartPole-v1", "CartPole-v1-impala-20260131-235958"),
        ("ALE/Pong-v5", "ALE-Pong-v5-impala-20260131-235958"),
        ("zipf(MinAtar/Breakout-v1,MinAtar/Freeway-v1;2)", "zipf-MinAtar-Breakout-v1-impala-20260131-235958"),
        ("zipf(a/file.py:Env,b/file.py:Env)", "zipf-file.py-Env-impala-20260131-235958"),
        ("MinAtar/Breakout-v1,b/file.py:Env", "MinAtar-Breakout-v1-file.py-Env-impala-20260131-235958"),
        ("../../etc", "etc-impala-20260131-235958"),
        ("🎲", "run-impala-20260131-235958"),
    ],
)
def test_a_run_without_a_name_is_called_by_environment_algorithm_and_time(env_id: str, name: str) -> None:
    assert default_name(config(env={"id": env_id}), NOW) == name


def test_a_default_name_is_always_a_valid_name(tmp_path: Path) -> None:
    name = default_name(config(tmp_path, env={"id": "x" * 500}), NOW)
    assert config(name=name).name == name


def test_two_runs_of_the_same_second_have_two_names(tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        name = default_name(config(tmp_path, env={"id": "CartPole-v1"}), NOW)
        (tmp_path / name).mkdir()
        names.add(name)
    assert len(names) == 3


def test_a_claim_makes_the_folder_and_its_parts(tmp_path: Path) -> None:
    with claimed(tmp_path / "runs" / "x"):
        assert {entry.name for entry in (tmp_path / "runs" / "x").iterdir()} == {".lock", "logs", "services"}


def test_a_second_launcher_is_refused_with_the_process_that_runs(tmp_path: Path) -> None:
    sentence = re.escape(f"run 'x' is already running here (process {os.getpid()}); give another --name")
    with claimed(tmp_path / "x"), pytest.raises(ConfigError, match=sentence), claimed(tmp_path / "x"):
        pass
    with claimed(tmp_path / "x"):
        pass


def test_services_that_outlive_their_launcher_keep_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "HANDOVER_S", 0.3)
    with claimed(tmp_path) as lock:
        command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        service = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[lock])
    (tmp_path / ".lock").write_text(str(dead_pid()))
    try:
        with pytest.raises(ConfigError, match="services of an earlier start"), claimed(tmp_path):
            pass
    finally:
        service.communicate()
    with claimed(tmp_path):
        pass


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_a_file_system_without_locks_costs_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    monkeypatch.setattr(fcntl, "flock", without_locks(number))
    with claimed(tmp_path / "x"), claim(tmp_path / "x"), claimed(tmp_path / "x"):
        assert set_aside(tmp_path / "x", NOW)
    assert len(caplog.records) == 1
    assert f"x: its file system has no locks ({os.strerror(number)})" in caplog.text


def without_locks(number: int) -> Callable[..., None]:
    def flock(*_args: int) -> None:
        raise OSError(number, os.strerror(number))

    return flock


def test_without_locks_the_learner_of_the_last_start_has_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", without_locks(errno.ENOSYS))
    with claim(tmp_path / "x") as first, claim(tmp_path / "x") as second:
        second()
        with pytest.raises(ConfigError, match="a later start trains this run now"):
            first()
        set_aside(tmp_path / "x", NOW)
        with pytest.raises(ConfigError, match="x was moved or removed while it was in use"):
            second()


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_folder_that_cannot_be_made_is_refused_with_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"run folder .*file/x cannot be written: Not a directory"):
        with claimed(tmp_path / "file" / "x"):
            pass


def test_a_file_in_place_of_a_subfolder_is_named(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("")
    with pytest.raises(ConfigError, match=r"run folder .* cannot be written: .*/logs: File exists"), claimed(tmp_path):
        pass


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        ("agent_steps,mean_return_100\n100,\n200,-3.5\n", {"agent_steps": 200.0, "mean_return_100": -3.5}),
        ("agent_steps,mean_return_100\n100,\n", {"agent_steps": 100.0}),
        ("agent_steps,mean_return_100\n", {}),
        ("elapsed_s,agent_steps\n1", {}),
        ("", {}),
        ("no,such\n1,2\n", {"no": 1.0, "such": 2.0}),
        ("agent_steps,mean_return_100\n" + 20_000 * "100,7\n" + "nan,9\n", {"mean_return_100": 9.0}),
        ("agent_steps,mean_return_100\n100,7\n20", {"agent_steps": 100.0, "mean_return_100": 7.0}),
    ],
)
def test_the_figures_at_the_end_are_those_of_the_last_row(tmp_path: Path, text: str, figures: dict[str, float]) -> None:
    assert metrics.last(tmp_path) == {}
    (tmp_path / "metrics.csv").write_text(text)
    assert metrics.last(tmp_path) == figures


def test_starting_over_moves_the_old_run_and_deletes_nothing(tmp_path: Path) -> None:
    for generation in range(3):
        (tmp_path / "x").mkdir()
        (tmp_path / "x" / "config.yaml").touch()
        (tmp_path / "x" / "checkpoint.pt").write_text(str(generation))
        assert set_aside(tmp_path / "x", NOW)
    assert not (tmp_path / "x").exists()
    assert {path.read_text() for path in tmp_path.glob("x.old-20260131-235958*/checkpoint.pt")} == {"0", "1", "2"}
    assert set_aside(tmp_path / "x", NOW) is None, "nothing is there any more"


def test_latest_leads_to_the_newest_run_and_replaces_nothing_else(tmp_path: Path) -> None:
    for name in ("one", "two", "two"):
        (tmp_path / name).mkdir(exist_ok=True)
        name_latest(tmp_path / name)
        assert run_files.places("latest", tmp_path)[0] == tmp_path / name
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["latest", "one", "two"]
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").mkdir()
    name_latest(tmp_path / "one")
    assert (tmp_path / "latest").is_dir()


def test_a_link_to_the_newest_run_which_tensorboard_would_follow_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "one" / "tensorboard").mkdir(parents=True)
    (tmp_path / "latest").symlink_to("one")
    name_latest(tmp_path / "one")
    found = [folder for folder, _, _ in os.walk(tmp_path, followlinks=True) if folder.endswith("tensorboard")]
    assert found == [str(tmp_path / "one" / "tensorboard")]


def test_no_run_is_called_latest() -> None:
    with pytest.raises(ConfigError, match="flag --xpid: got 'latest', expected another name: this one leads to the"):
        load(["--xpid", "latest"], {})


def test_health_looks_at_the_newest_run_under_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "one" / "services").mkdir(parents=True)
    (tmp_path / "one" / "services" / "actor-0.json").touch()
    name_latest(tmp_path / "one")
    assert newest(tmp_path) == tmp_path / "one"


def test_a_running_run_cannot_be_started_over(tmp_path: Path) -> None:
    with claimed(tmp_path / "x"):
        with pytest.raises(ConfigError, match="already running"):
            set_aside(tmp_path / "x", NOW)
        assert (tmp_path / "x").exists()


def test_a_run_that_a_learner_trains_without_a_launcher_cannot_be_started_over(tmp_path: Path) -> None:
    with claim(tmp_path / "x"), pytest.raises(ConfigError, match="run 'x' has a learner that trains it now"):
        set_aside(tmp_path / "x", NOW)
    assert set_aside(tmp_path / "x", NOW)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"env": {"id": "CartPole-v1"}}, "env.id"),
        ({"env": {"frame_stack": 1}}, "env.frame_stack"),
        ({"net": {"use_lstm": True}}, "net.use_lstm"),
        ({"impala": {"optimizer": "adam"}}, "impala.optimizer"),
        ({"seed": 5}, "seed"),
        ({"parent": {"run": "y"}}, "parent.run"),
    ],
)
def test_a_checkpoint_cannot_go_on_with_another_task_network_or_optimiser(change: dict[str, object], path: str) -> None:
    with pytest.raises(ConfigError, match=rf"(?m)^{path}: run 'x' was trained with .* cannot continue with .*--fresh"):
        refuse_changes(config(name="x"), config(name="x", **change))


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"dqn": {"replay_size": 2000}}, "dqn.replay_size"),
        ({"learner": {"unroll_length": 10}}, "learner.unroll_length"),
        ({"sync": {"rule": "adaptive 0.1"}}, "sync.rule"),
        ({"dqn": {"priority_exponent": 0.6}}, "dqn.priority_exponent"),
    ],
)
def test_a_replay_cannot_continue_with_settings_that_change_its_rows(change: dict[str, object], path: str) -> None:
    with pytest.raises(ConfigError, match=rf"(?m)^{path}: run 'x' was trained with .* cannot continue with "):
        refuse_changes(config(name="x", algo="dqn"), config(name="x", **{"algo": "dqn", **change}))
    if "dqn" not in change:
        refuse_changes(config(name="x"), config(name="x", **change))


def test_settings_that_do_not_bind_a_checkpoint_may_change() -> None:
    refuse_changes(
        config(name="x"),
        config(name="x", total_steps=5, learner={"batch_size": 8}, impala={"learning_rate": 1.0}, local={"actors": 2}),
    )


def test_a_run_cannot_continue_to_fewer_steps_than_it_has(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "metrics.csv").write_text("agent_steps,mean_return_100\n200000,\n")
    done = config(tmp_path, name="x", total_steps=200_000)
    refuse_changes(done, done)
    refuse_changes(done, config(tmp_path, name="x", total_steps=200_000, learner={"log_every_s": 9.0}))
    with pytest.raises(ConfigError, match="nothing is left to train; give more than 200000"):
        refuse_changes(done, config(tmp_path, name="x", total_steps=200_000, learner={"batch_size": 9}))
    with pytest.raises(ConfigError) as caught:
        refuse_changes(done, config(tmp_path, name="x", total_steps=100_000))
    assert str(caught.value) == (
        "total_steps: run 'x' has done 200,000 agent steps of 100,000: nothing is left to train; give more than 200000"
    )


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    write_atomically(tmp_path / "config.yaml", "old", durable=False)
    write_atomically(tmp_path / "config.yaml", "new", durable=False)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["new"]
    with pytest.raises(ConfigError, match="cannot be written"):
        write_atomically(tmp_path / "missing" / "config.yaml", "text", durable=False)


@pytest.mark.parametrize(
    ("flags", "end"),
    [
        (["--total_steps", "2000"], "continues at 0.0005 and falls to 0 at total_steps 2000; --ppo.schedule=constant "),
        (["--total_steps", "2000"], "--ppo.learning_rate=0.0005 holds it"),
        (["--total_steps", "1100", "--ppo.learning_rate", "0.1"], "at total_steps 1100; --ppo.schedule=constant "),
        (["--total_steps", "1100", "--ppo.learning_rate", "0.1"], "--ppo.learning_rate=0.1 holds it"),
        (["--total_steps", "2000", "--ppo.schedule", "constant"], ""),
        (["--seed", "2"], ""),
    ],
)
def test_a_continued_run_reports_what_its_schedule_does_to_the_learning_rate(
    tmp_path: Path, flags: list[str], end: str
) -> None:
    begun = ["--root", str(tmp_path), "--name", "x", "--algo", "ppo", "--ppo.learning_rate", "1e-3"]
    saved = load([*begun, "--total_steps", "1000"], {})
    saved.folder.mkdir()
    (saved.folder / "config.yaml").write_text(dump(saved))
    (saved.folder / "checkpoint.pt").touch()
    (saved.folder / "metrics.csv").write_text("agent_steps,mean_return_100\n1000,5\n")
    note = folder.schedule_note(saved, load(["--config", str(saved.folder / "config.yaml"), *flags], {}))
    assert end in note if end else not note
