"""The run folder: names, the lock, starting over, what a continued run may change, and watching it."""

import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.build.errors import refuses
from tests.build.folders import save_run
from tests.build.starts import NOW, make_run_folder
from zerobeast.cli.watch import main
from zerobeast.common.config.load import load_config
from zerobeast.common.files import metrics, run_files
from zerobeast.common.health import pages, status
from zerobeast.common.health.status import ExitRecord
from zerobeast.common.settings.tree import RunConfig
from zerobeast.discovery.folder_services import find_newest, services_of
from zerobeast.launcher.foreign_processes import find_processes, is_running
from zerobeast.plan import run_folder as folder
from zerobeast.plan.run_folder import default_name, lock_folder, move_folder_aside, name_latest, refuse_changes
from zerobeast.services.learner.folder import claim


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
    with lock_folder(tmp_path / "x"), refuses("name", value="x") as caught, lock_folder(tmp_path / "x"):
        pass
    assert {entry.name for entry in (tmp_path / "x").iterdir()} == {".lock", "logs", "services"}
    assert f"process {os.getpid()}" in str(caught.error)
    with lock_folder(tmp_path / "x"):
        pass


def test_services_that_outlive_their_launcher_keep_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "HANDOVER_S", 0.3)
    with lock_folder(tmp_path) as lock:
        command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        service = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[lock])
        os.ftruncate(lock, 0)  # no process has the number of the launcher, which is this one
    try:
        with refuses("name", value=tmp_path.name) as caught, lock_folder(tmp_path):
            pass
        assert "earlier start" in str(caught.error)
    finally:
        service.communicate()
    with lock_folder(tmp_path):
        pass


def test_a_file_system_without_locks_costs_one_warning_and_the_learner_of_the_last_start_has_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def flock(*_args: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock_folder(tmp_path / "x"), claim(tmp_path / "x") as first, lock_folder(tmp_path / "x"):
        assert len(caplog.records) == 1
        with claim(tmp_path / "x") as second:
            second()
            with refuses(str(tmp_path / "x")):
                first()
        assert move_folder_aside(tmp_path / "x", NOW)
        with refuses(str(tmp_path / "x")):
            second()


def test_a_folder_that_cannot_be_made_is_refused_and_what_is_in_its_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refuses(str(tmp_path / "file" / "x")), lock_folder(tmp_path / "file" / "x"):
        pass
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "logs").write_text("")
    with refuses(str(tmp_path / "x" / "logs")) as caught, lock_folder(tmp_path / "x"):
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
    assert metrics.read_last_row(tmp_path) == {}
    (tmp_path / "metrics.csv").write_text(text)
    assert metrics.read_last_row(tmp_path) == figures


def test_starting_over_moves_the_old_run_and_deletes_nothing(tmp_path: Path) -> None:
    for generation in range(3):
        (tmp_path / "x").mkdir()
        (tmp_path / "x" / "config.yaml").touch()
        (tmp_path / "x" / "checkpoint.pt").write_text(str(generation))
        assert move_folder_aside(tmp_path / "x", NOW)
    assert not (tmp_path / "x").exists()
    assert {path.read_text() for path in tmp_path.glob("x.old-20260131-235958*/checkpoint.pt")} == {"0", "1", "2"}
    assert move_folder_aside(tmp_path / "x", NOW) is None, "nothing is there any more"


def test_latest_leads_to_the_newest_run_and_replaces_nothing_but_a_link(tmp_path: Path) -> None:
    (tmp_path / "one" / "tensorboard").mkdir(parents=True)
    (tmp_path / "two").mkdir()
    (tmp_path / "latest").symlink_to("one")  # which tensorboard would follow
    for name in ("one", "two", "two"):
        name_latest(tmp_path / name)
        assert run_files.candidate_paths("latest", tmp_path)[0] == tmp_path / name
    assert {path.name for path in tmp_path.iterdir() if not path.is_symlink()} == {"latest", "one", "two"}
    (tmp_path / "two" / "services").mkdir()
    (tmp_path / "two" / "services" / "actor-0.json").touch()
    assert find_newest(tmp_path) == tmp_path / "two", "under its own name"
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").mkdir()
    name_latest(tmp_path / "one")
    assert (tmp_path / "latest").is_dir()


def test_a_run_that_a_launcher_or_a_learner_trains_cannot_be_started_over(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "x"), refuses("name", value="x"):
        move_folder_aside(tmp_path / "x", NOW)
    with claim(tmp_path / "x"), refuses(str(tmp_path / "x")):
        move_folder_aside(tmp_path / "x", NOW)
    assert (tmp_path / "x").exists()
    assert move_folder_aside(tmp_path / "x", NOW)


@pytest.mark.parametrize(
    ("algo", "change", "path"),
    [
        ("impala", {"env": {"id": "CartPole-v1"}}, "env.id"),
        ("impala", {"impala": {"optimizer": "adam"}}, "impala.optimizer"),
        ("impala", {"parent": {"run": "y"}}, "parent.run"),
        ("dqn", {"dqn": {"replay_size": 2000}}, "dqn.replay_size"),
        ("dqn", {"learner": {"unroll_length": 10}}, "learner.unroll_length"),
        ("dqn", {"sync": {"rule": "adaptive 0.1"}}, "sync.rule"),
        ("sac", {"net": {"norm": "batch"}}, "net.norm"),
        ("sac", {"net": {"residual_blocks": 2}}, "net.residual_blocks"),
        ("sac", {"sac": {"atoms": 51}}, "sac.atoms"),
        ("td3", {"td3": {"target_network": False}}, "td3.target_network"),
        ("ddpg", {"ddpg": {"normalize_returns": True}}, "ddpg.normalize_returns"),
    ],
)
def test_a_checkpoint_cannot_go_on_with_another_task_network_optimiser_or_rows_of_a_replay(
    algo: str, change: dict[str, object], path: str
) -> None:
    with refuses(path) as caught:
        refuse_changes(config(name="x", algo=algo), config(name="x", **{"algo": algo, **change}))
    assert caught.paths == [path]


def test_settings_that_do_not_bind_a_checkpoint_may_change_and_steps_not_go_below_those_done(tmp_path: Path) -> None:
    free: dict[str, Any] = {"impala": {"learning_rate": 1.0}, "local": {"actors": 2}, "sync": {"rule": "adaptive 0.1"}}
    refuse_changes(config(name="x"), config(name="x", total_steps=5, learner={"batch_size": 8}, **free))
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "metrics.csv").write_text(HEAD + "200000,\n")

    def of(steps: int, **learner: object) -> RunConfig:
        return config(tmp_path, name="x", total_steps=steps, learner=learner)

    refuse_changes(of(200_000), of(200_000, log_every_s=9.0))
    for steps, learner in ((200_000, {"batch_size": 9}), (100_000, {})):
        with refuses("total_steps", value=steps):
            refuse_changes(of(200_000), of(steps, **learner))


def test_a_continued_run_reports_what_its_schedule_does_to_the_learning_rate(tmp_path: Path) -> None:
    before = make_run_folder(tmp_path, "x", "--algo=ppo", "--ppo.learning_rate=1e-3", "--total_steps=1000")
    (before.folder / "checkpoint.pt").touch()
    (before.folder / "metrics.csv").write_text(HEAD + "1000,5\n")
    for flags, said in (("", "--ppo.learning_rate=0.0005 "), ("--ppo.schedule constant", "")):
        argv = ["--config", str(before.folder / "config.yaml"), "--total_steps", "2000", *flags.split()]
        note = folder.schedule_note(before, load_config(argv, {}))
        assert (bool(note), said in note) == (bool(said), True)


HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print(flush=True)
time.sleep(2)
"""


def announce(folder: Path, name: str, pid: Any, **more: str) -> None:
    (folder / "services").mkdir(exist_ok=True)
    (folder / "services" / f"{name}.json").write_text(json.dumps({"health": "127.0.0.1:1", "pid": pid, **more}))


def test_services_of_one_process_are_one_worker_and_the_learner_is_first(tmp_path: Path) -> None:
    for role in ("actor", "broker", "envserver"):
        announce(tmp_path, f"{role}-0", 11)
        announce(tmp_path, f"{role}-1", 12)
    announce(tmp_path, "learner-0", os.getpid())
    learner, worker, _ = found = find_processes(tmp_path)
    assert [each.spec.name for each in found] == ["learner 0", "worker 0", "worker 1"]
    assert worker.spec.log == tmp_path / "logs" / "worker-0.log"
    assert worker.spec.statuses["broker"] == tmp_path / "services" / "broker-0.json"
    assert learner.code is None
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    announce(tmp_path, "learner-0", ended.pid)
    assert find_processes(tmp_path)[0].code == 0


def test_a_process_that_has_not_announced_all_its_services_and_one_elsewhere_are_there_too(tmp_path: Path) -> None:
    for role in ("broker", "envserver"):
        announce(tmp_path, f"{role}-0", 11)
    announce(tmp_path, "actor-3", 11, host="another-machine")
    announce(tmp_path, "actor-4", 11, host=socket.gethostname())
    found = {each.spec.name: each.pid for each in find_processes(tmp_path)}
    assert found == {"broker 0": 11, "envserver 0": 11, "actor 3": -1, "actor 4": 11}


def test_a_status_file_is_of_its_writer_until_that_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, end = status.files_of("learner", tmp_path / "services" / "learner-0.json"), ExitRecord("failed", "no", 2)
    page = {"role": "learner", "pid": 12}
    monkeypatch.setattr(pages, "fetch_page", lambda *_: page)
    for pid, found in ((12, page), (11, {})):
        announce(tmp_path, "learner-0", pid)
        assert [view.page for view in services_of(tmp_path, remote=False)] == [found]
    status.record_end(files, 13, end)
    assert status.end_of(files, 13) is None, "11 has not ended"
    for pid in (11, 13):
        status.record_end(files, pid, end)
        assert status.end_of(files, pid) == end


def test_files_that_are_no_announcements_are_left_out(tmp_path: Path) -> None:
    announce(tmp_path, "cook-0", 1)
    announce(tmp_path, "broker-x", 1)
    announce(tmp_path, "broker-0", "none")
    for index, text in enumerate(("{", "[]", "[" * 100_000, '{"pid": Infinity}', '{"pid": 2147483648}', '{"pid": -7}')):
        (tmp_path / "services" / f"actor-{index}.json").write_text(text)
    assert find_processes(tmp_path) == find_processes(tmp_path / "nowhere") == []


def test_where_nothing_runs_there_is_nothing_to_watch(tmp_path: Path) -> None:
    save_run(tmp_path / "ended", "x", {400: 21.5}, total_steps=1000)
    for words in ([], ["x"], ["x", "--root", str(tmp_path / "ended")]):
        with refuses():
            main(["--root", str(tmp_path), *words])


def test_a_run_and_watching_it_end_with_its_lock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_run(tmp_path, "x", {400: 21.5}, total_steps=1000)
    (folder / ".lock").touch()
    assert not is_running(folder)
    command = [sys.executable, "-c", HOLDER, str(folder / ".lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        holder.stdout.readline()
        assert is_running(folder)
        assert main([str(folder)]) == 0
    assert not is_running(folder)
    assert capsys.readouterr().out.startswith("x: stopped after 400 agent steps")
