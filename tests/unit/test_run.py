"""A run that exists, by its name: figures, state, callbacks; and what the signatures of the public names show."""

import contextlib
import inspect
import os
import pydoc
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import zerobeast as zb
from tests.build.errors import refuses
from tests.build.folders import evaluation, save_run
from zerobeast.api import run_thread, train
from zerobeast.api.policies import load
from zerobeast.api.run import list_callbacks
from zerobeast.api.run_events import RunEvents
from zerobeast.common.files import evaluations, requests
from zerobeast.launcher.supervisor import Ending
from zerobeast.plan.resolution import ResolvedRun, RunFlags
from zerobeast.plan.run_folder import lock_folder

EPISODES = 'agent_steps,env,return,length,infos\n100,X,1.5,9,"{""success"": 1.0}"\n200,X,,7,\nhalf a li'
NO_NUMBERS = (float("nan"), 1e300, None, "3", [1, 2], np.zeros(2))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BEAST_ROOT", str(tmp_path))
    done = save_run(tmp_path, "done", {200: 1.0, 400: 2.0}, {200: 3.0})
    (done / "episodes.csv").write_text(EPISODES)
    (save_run(tmp_path / "lr", "seed-1", {100: 1.0}) / "checkpoint.pt").touch()
    (tmp_path / "latest").write_text("done\n")
    os.utime(done / "config.yaml", (1, 1))
    save_run(tmp_path, "new")
    return tmp_path


def test_a_run_is_found_by_name_folder_place_in_a_sweep_or_as_the_latest(root: Path) -> None:
    found = [zb.Run("done"), zb.Run(root / "done"), zb.Run(), zb.Run("done", root=root)]
    assert {run.folder for run in found} == {(root / "done").resolve()}
    assert found[0].name == "done"
    assert zb.Run("lr/seed-1").status().state == "stopped"
    assert (found[0].status().state, found[0].status().agent_steps, found[0].status().total_steps) == ("done", 400, 400)
    assert "'done', done: 400/400 agent steps" in repr(found[0])
    assert [run.name for run in zb.runs()][-2:] == ["new", "done"], "the one that was started last comes first"
    for missing in ("nothing", "lr"):
        with pytest.raises(zb.ConfigError, match=missing):
            zb.Run(missing)
    with lock_folder(root / "done"):
        assert zb.Run("done").status().state == "finishing", "its last evaluations are played"


def test_a_start_in_python_shows_remarks_too(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "StartedRun", lambda settled, *_: settled.config.env)
    env = zb.start("CartPole-v1", "ppo", 3000, env={"options": {"low": -0.01}}, dqn={"discount": 0.5})
    assert (env.id, env.options) == ("CartPole-v1", {"low": -0.01})
    assert "dqn.discount" in caplog.text


def test_its_figures_are_data_frames_or_lists(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = zb.Run("done")
    assert run.metrics()["mean_return_100"].tolist() == [1.0, 2.0]
    assert run.evaluations()["returns"].tolist() == [[2.0, 4.0]]
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert [row["agent_steps"] for row in run.metrics()] == [200, 400]
    first = {"agent_steps": 100, "env": "X", "return": 1.5, "length": 9, "info/success": 1.0}
    assert run.episodes() == [first, {"agent_steps": 200, "env": "X", "return": None, "length": 7}]
    assert zb.Run("new").metrics() == zb.Run("new").episodes() == zb.Run("new").evaluations() == []


def test_what_is_logged_is_a_column_also_of_a_run_that_has_ended(root: Path) -> None:
    run = zb.Run("done")
    table = run.folder / "metrics.csv"
    text = table.read_text().replace("mean_return_100", "mean_return_100,entropy")
    table.write_text(text.replace(".0\n", ".0,0.5\n"))
    run.log(difficulty=3, **{"own/share": 0.5})
    table = run.metrics()
    assert table["agent_steps"].tolist() == [200, 400]
    assert table["difficulty"].tolist()[-1] == 3
    assert table["mean_return_100"].tolist() == [1.0, 2.0]
    curves = EventAccumulator(str(run.folder / "tensorboard")).Reload()
    points = [(tag, each.step, each.value) for tag in curves.Tags()["scalars"] for each in curves.Scalars(tag)]
    assert sorted(points) == [("difficulty", 400, 3.0), ("own/share", 400, 0.5)], "nothing else again"
    assert zb.plot(run, of="own/share").axes[0].lines[0].get_ydata().tolist() == [0.5]
    run.log(difficulty=np.float32(4))
    assert run.metrics()["difficulty"].tolist()[-1] == 4, "a column of the caller's own takes more"
    names = ("agent_steps", "mean_return_100", "entropy", "info/x", "a,b", "x y")
    for name, value in [*((name, 1.0) for name in names), *(("x", value) for value in NO_NUMBERS)]:
        with pytest.raises(zb.ConfigError, match=name):
            run.log(**{name: value})
    assert [*(run.folder / "requests").glob("*.json")] == []


def test_every_run_is_listed_whatever_is_wrong_with_one_and_those_of_sweeps_too(root: Path) -> None:
    for file in ("broken/config.yaml", "half/metrics.csv", "lr/sweep.jsonl"):
        (root / file).parent.mkdir(exist_ok=True)
        (root / file).write_text("seed: [1\n")
    found = {run.name: run for run in zb.runs()}
    assert found.keys() == {"done", "new", "seed-1", "broken"}
    assert str(found["broken"].status()).startswith("unknown")
    with pytest.raises(zb.ConfigError, match=r"config\.yaml"):
        _ = found["broken"].config


def test_settings_are_asked_for_as_they_were_understood_and_not_of_a_run_that_has_ended(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = zb.Run("new")
    (run.folder / "requests/x.json").mkdir(parents=True)  # holds no other up
    with lock_folder(run.folder):
        run.set(ppo={"entropy_cost": np.float32(0.5), "clip": "0.25"})
    assert requests.take_requests(run.folder)[requests.SET] == {"ppo.entropy_cost": 0.5, "ppo.clip": 0.25}
    with refuses():
        zb.Run("lr/seed-1").set(ppo={"entropy_cost": 0.25})
    zb.Run("done").set(ppo={"entropy_cost": 0.25})
    assert "ppo.entropy_cost" in caplog.text, "it has no effect"
    assert not (root / "done/requests").exists()
    with pytest.raises(zb.ConfigError, match=r"env\.options"):
        zb.Run("done").set(env={"options": {"level": 2}})


def test_what_a_call_cannot_take_is_refused(root: Path) -> None:
    for given in (("CartPole-v1", "Pong-v5"), ("CartPole-v1", {"id": "Pong-v5"}), (None, None)):
        with pytest.raises(zb.ConfigError, match=r"^env"):
            zb.start(given[0], "ppo", 3000, **{"env": given[1]} if given[1] else {})
    kind = type("Mine", (zb.Callbacks,), {"on_update": print})
    for wrong in (type("Mine", (), {"on_update": print}), kind(), zb.Callbacks(on_evaluation=3)):
        with refuses():
            list(list_callbacks(wrong))
    save_run(root, "strange", algo="nowhere:SPEC")
    for run in ("strange", zb.Run("strange")):  # a file decides no more for a handle than for its name
        with pytest.raises(zb.ConfigError, match=r"no checkpoint|a module"):
            load(run)


def test_a_run_of_another_process_is_awaited_and_not_ended(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = zb.Run("lr/seed-1")
    monkeypatch.setattr("zerobeast.api.run.fetch_announced_page", lambda _place, remote: {"agent_steps": 207})
    assert run.status().agent_steps == 100, "a page that is there still is of a process that has ended"
    with lock_folder(run.folder), run:
        assert (run.status().state, run.status().agent_steps) == ("training", 207)
        monkeypatch.undo()
        assert run.status().state == "starting"
        assert not run.wait(timeout=0.0)
        with pytest.raises(zb.ConfigError):
            run.stop()
    assert run.wait()
    run.stop()


def test_callbacks_are_told_once_of_each_thing_that_is_new(root: Path) -> None:
    told: list[tuple[str, Any]] = []

    def update(run: zb.Run, row: dict[str, Any]) -> None:
        told.append(("update", row["agent_steps"]))

    also = zb.Callbacks(
        on_episode=lambda _, new: told.append(("episodes", [row["length"] for row in new])),
        on_evaluation=lambda _, row: told.append(("evaluation", row["agent_steps"])),
        on_checkpoint=lambda _, path: told.append(("checkpoint", path.name)),
    )
    run = zb.Run("done")
    news = RunEvents(run.folder, [*list_callbacks([update, also])])
    news.tell(run)
    assert told == [], "what was there before is not new"
    with (run.folder / "metrics.csv").open("a") as file:
        file.write("50,500,2000,7\n51,500,2000,7\n")
    (run.folder / "episodes.csv").write_text(f"{EPISODES}ne\n200,X,2.0,8,\n".replace("half a line\n", ""))
    evaluations.append_evaluations(run.folder, [evaluation(500, 4.0, "CartPole-v1")])
    (run.folder / "checkpoint.pt").touch()
    for _ in range(2):
        news.tell(run)
    assert told.pop(1) == ("update", 500), "a row of the same steps, later"
    assert told == [("update", 500), ("episodes", [8]), ("evaluation", 500), ("checkpoint", "checkpoint.pt")]
    with (run.folder / "episodes.csv").open("a") as file:
        file.write("500,X,2.0,9,\n")
    (run.folder / "episodes.csv").rename(run.folder / "episodes.1.csv")  # it is full
    (run.folder / "episodes.csv").write_text(f"{EPISODES.splitlines()[0]}\n500,X,2.0,10,\n")
    news.tell(run)
    assert told.pop() == ("episodes", [9, 10])
    draft = run.folder / "draft"  # a start of the learner writes anew what its checkpoint knows
    draft.write_text((run.folder / "episodes.csv").read_text() + "600,X,3.0,6,\n")
    draft.replace(run.folder / "episodes.csv")
    news.tell(run)
    assert told[4:] == [("episodes", [6])]


def test_no_signature_shows_a_value_of_the_environment_and_each_public_name_is_explained() -> None:
    for name in zb.__all__:
        assert inspect.getdoc(getattr(zb, name)), name
    assert os.environ["PATH"] not in "".join(pydoc.render_doc(value) for value in (zb.Run, zb.train, zb.start))


def test_an_interrupt_of_train_names_the_run_and_is_raised(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(zb.Run):
        config: Any = SimpleNamespace(env=SimpleNamespace(id="X"), section="ppo")

        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    monkeypatch.setattr(train, "start", lambda *_, **__: Interrupted("lr/seed-1"))
    with pytest.raises(KeyboardInterrupt):
        train.train("X", root=root / "lr")
    assert f"zb.Run('seed-1', root={str(root / 'lr')!r})" in capsys.readouterr().out.splitlines()[-1]


class InterruptedEvent(threading.Event):
    """Each wait of the main thread is interrupted, as by Ctrl-C."""

    def wait(self, timeout: float | None = None) -> bool:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return super().wait(timeout)


def test_two_interrupts_of_a_start_leave_no_run_without_a_handle(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, over, ran = threading.Event(), threading.Event(), threading.Event()
    supervisor = SimpleNamespace(run=lambda **_: ran.set() or Ending(0), ask=lambda _: None)
    config = zb.Run("new").config

    @contextlib.contextmanager
    def begun(*_: Any, **__: Any) -> Iterator[Any]:
        try:
            assert goes_on.wait(60)  # its environment is checked
            yield SimpleNamespace(config=config, add_all=list, supervisor=lambda: supervisor)
        finally:
            over.set()

    monkeypatch.setattr(run_thread, "prepare_fleet", begun)
    monkeypatch.setattr(run_thread, "threading", SimpleNamespace(Event=InterruptedEvent, Thread=threading.Thread))
    with pytest.raises(KeyboardInterrupt):
        run_thread.StartedRun(ResolvedRun(config, RunFlags(), None, {}), {})
    goes_on.set()
    assert over.wait(60)
    assert not ran.is_set()
