"""The run folder: names, the lock, starting over, and what a continued run may not change."""

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.build.errors import refused
from tests.build.starts import NOW, started
from zerobeast.common.config.load import load
from zerobeast.common.files import metrics, run_files
from zerobeast.common.settings.tree import RunConfig
from zerobeast.discovery.run import newest
from zerobeast.plan import run_folder as folder
from zerobeast.plan.run_folder import claimed, default_name, name_latest, refuse_changes, set_aside
from zerobeast.services.learner.kept import claim


def config(root: Path | str = "runs", **settings: object) -> RunConfig:
    return RunConfig.model_validate({"root": str(root), **settings})


@pytest.mark.parametrize(
    ("env_id", "name"),
    [
        ("CartPole-v1", "CartPole-v1"),
        ("zipf(MinAtar/Breakout-v1,MinAtar/Freeway-v1;2)", "zipf-MinAtar-Breakout-v1"),
        ("MinAtar/Breakout-v1,b/file.py:Env", "MinAtar-Breakout-v1-file.py-Env"),
        ("../../etc", "etc"),
    ],
)
def test_a_run_without_a_name_is_called_by_environment_algorithm_and_time(env_id: str, name: str) -> None:
    assert default_name(config(env={"id": env_id}), NOW) == f"{name}-impala-20260131-235958"


def test_a_default_name_is_always_a_valid_name_and_none_that_there_is(tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        names.add(name := default_name(config(tmp_path, env={"id": "x" * 500}), NOW))
        assert config(name=name).name == name
        (tmp_path / name).mkdir()
    assert len(names) == 3


def test_a_claim_makes_the_folder_and_a_second_launcher_is_refused_with_the_process_that_runs(tmp_path: Path) -> None:
    with claimed(tmp_path / "x"), refused("name", value="x") as caught, claimed(tmp_path / "x"):
        pass
    assert {entry.name for entry in (tmp_path / "x").iterdir()} == {".lock", "logs", "services"}
    assert f"process {os.getpid()}" in str(caught.error)
    with claimed(tmp_path / "x"):
        pass


def test_services_that_outlive_their_launcher_keep_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "HANDOVER_S", 0.3)
    with claimed(tmp_path) as lock:
        command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        service = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[lock])
        os.ftruncate(lock, 0)  # no process has the number of the launcher, which is this one
    try:
        with refused("name", value=tmp_path.name) as caught, claimed(tmp_path):
            pass
        assert "earlier start" in str(caught.error)
    finally:
        service.communicate()
    with claimed(tmp_path):
        pass


def test_a_file_system_without_locks_costs_one_warning_and_the_learner_of_the_last_start_has_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def flock(*_args: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with claimed(tmp_path / "x"), claim(tmp_path / "x") as first, claimed(tmp_path / "x"):
        assert len(caplog.records) == 1
        with claim(tmp_path / "x") as second:
            second()
            with refused(str(tmp_path / "x")):
                first()
        assert set_aside(tmp_path / "x", NOW)
        with refused(str(tmp_path / "x")):
            second()


def test_a_folder_that_cannot_be_made_is_refused_and_what_is_in_its_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refused(str(tmp_path / "file" / "x")), claimed(tmp_path / "file" / "x"):
        pass
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "logs").write_text("")
    with refused(str(tmp_path / "x" / "logs")) as caught, claimed(tmp_path / "x"):
        pass
    assert str(tmp_path / "x" / "logs") in str(caught.error)


HEAD = "agent_steps,mean_return_100\n"


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        (HEAD + "100,\n200,-3.5\n", {"agent_steps": 200.0, "mean_return_100": -3.5}),
        (HEAD + "100,7\n20", {"agent_steps": 100.0, "mean_return_100": 7.0}),
        (HEAD + 20_000 * "100,7\n" + "nan,9\n", {"mean_return_100": 9.0}),
        (HEAD, {}),
        ("", {}),
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


def test_latest_leads_to_the_newest_run_and_replaces_nothing_but_a_link(tmp_path: Path) -> None:
    (tmp_path / "one" / "tensorboard").mkdir(parents=True)
    (tmp_path / "two").mkdir()
    (tmp_path / "latest").symlink_to("one")  # which tensorboard would follow
    for name in ("one", "two", "two"):
        name_latest(tmp_path / name)
        assert run_files.places("latest", tmp_path)[0] == tmp_path / name
    assert {path.name for path in tmp_path.iterdir() if not path.is_symlink()} == {"latest", "one", "two"}
    (tmp_path / "two" / "services").mkdir()
    (tmp_path / "two" / "services" / "actor-0.json").touch()
    assert newest(tmp_path) == tmp_path / "two", "under its own name"
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").mkdir()
    name_latest(tmp_path / "one")
    assert (tmp_path / "latest").is_dir()


def test_a_run_that_a_launcher_or_a_learner_trains_cannot_be_started_over(tmp_path: Path) -> None:
    with claimed(tmp_path / "x"), refused("name", value="x"):
        set_aside(tmp_path / "x", NOW)
    with claim(tmp_path / "x"), refused(str(tmp_path / "x")):
        set_aside(tmp_path / "x", NOW)
    assert (tmp_path / "x").exists()
    assert set_aside(tmp_path / "x", NOW)


@pytest.mark.parametrize(
    ("algo", "change", "path"),
    [
        ("impala", {"env": {"id": "CartPole-v1"}}, "env.id"),
        ("impala", {"impala": {"optimizer": "adam"}}, "impala.optimizer"),
        ("impala", {"parent": {"run": "y"}}, "parent.run"),
        ("dqn", {"dqn": {"replay_size": 2000}}, "dqn.replay_size"),
        ("dqn", {"learner": {"unroll_length": 10}}, "learner.unroll_length"),
        ("dqn", {"sync": {"rule": "adaptive 0.1"}}, "sync.rule"),
    ],
)
def test_a_checkpoint_cannot_go_on_with_another_task_network_optimiser_or_rows_of_a_replay(
    algo: str, change: dict[str, object], path: str
) -> None:
    with refused(path) as caught:
        refuse_changes(config(name="x", algo=algo), config(name="x", **{"algo": algo, **change}))
    assert caught.paths == [path]


def test_settings_that_do_not_bind_a_checkpoint_may_change_and_steps_not_go_below_those_done(tmp_path: Path) -> None:
    free: dict[str, object] = {
        "impala": {"learning_rate": 1.0},
        "local": {"actors": 2},
        "sync": {"rule": "adaptive 0.1"},
    }
    refuse_changes(config(name="x"), config(name="x", total_steps=5, learner={"batch_size": 8}, **free))
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "metrics.csv").write_text(HEAD + "200000,\n")

    def of(steps: int, **learner: object) -> RunConfig:
        return config(tmp_path, name="x", total_steps=steps, learner=learner)

    refuse_changes(of(200_000), of(200_000, log_every_s=9.0))
    for steps, learner in ((200_000, {"batch_size": 9}), (100_000, {})):
        with refused("total_steps", value=steps):
            refuse_changes(of(200_000), of(steps, **learner))


def test_a_continued_run_reports_what_its_schedule_does_to_the_learning_rate(tmp_path: Path) -> None:
    before = started(tmp_path, "x", "--algo=ppo", "--ppo.learning_rate=1e-3", "--total_steps=1000")
    (before.folder / "checkpoint.pt").touch()
    (before.folder / "metrics.csv").write_text(HEAD + "1000,5\n")
    for flags, said in (("", "--ppo.learning_rate=0.0005 "), ("--ppo.schedule constant", "")):
        argv = ["--config", str(before.folder / "config.yaml"), "--total_steps", "2000", *flags.split()]
        note = folder.schedule_note(before, load(argv, {}))
        assert (bool(note), said in note) == (bool(said), True)
