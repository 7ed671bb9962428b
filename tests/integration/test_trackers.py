"""The trackers themselves, without a network, and the process that a launcher starts for them."""

import json
import logging
import os
import sqlite3
from pathlib import Path

import pytest

from tests.build.folders import save_run
from tests.helpers import python, running_still, wait_for_end, wait_until
from zerobeast.common.settings.tree import RunConfig
from zerobeast.launcher.pages import Gatherer
from zerobeast.launcher.tracker import run_tracker
from zerobeast.testing.tracker import GIF

BROKEN = """
import time
class Broken:
    def __init__(self, run): self.left = 1
    def write(self, values, agent_steps):
        self.left -= 1
        if self.left < 0: raise ConnectionError("the network is down")
    def close(self): pass
class Stuck(Broken):
    def write(self, values, agent_steps): time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = save_run(tmp_path / "runs", "x", ppo={"learning_rate": 0.001})
    for part in ("videos", "logs"):
        (place / part).mkdir()
    (place / "metrics.csv").write_text("agent_steps,loss\n10,0.5\n20,0.25\n")
    (place / "evaluations.csv").write_text("agent_steps,env,mean_return,returns\n15,A,7.5,7 8\n")
    (place / "videos/20.gif").write_bytes(GIF)
    (tmp_path / "own.py").write_text(BROKEN)
    return place


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_a_run_is_in_the_tracker_without_a_network_and_goes_on_there(folder: Path, name: str) -> None:
    own = {"WANDB_MODE": "offline", "TRACKIO_DIR": str(folder / "trackio"), "HOME": str(folder), "HF_HUB_OFFLINE": "1"}
    track = ["-m", "zerobeast", "track", "x", "--to", name, "--project", "p"]
    for count in (4, 1, 0) if name == "trackio" else (4, 1):
        code, out, error = wait_for_end(python(*track, cwd=folder.parents[1], variables=own))
        assert (code, out.splitlines()[-1]) == (0, f"x: {count} points to {name}, project p"), error
        if count == 4:
            with (folder / "metrics.csv").open("a") as file:
                file.write("30,0.125\n")
    if name == "trackio":
        database = sqlite3.connect(folder / "trackio/p.db")
        rows = database.execute("select run_name, step, metrics from metrics order by timestamp, id").fetchall()
        database.close()
        assert [step for _, step, _ in rows] == [10, 20, 15, 20, 30]
        [name] = {name for name, *_ in rows}
        assert name.startswith("x-"), "another run of this name is another run"
        assert json.loads(rows[-1][2]) == {"train/loss": 0.125}
    else:
        stored = b"".join(path.read_bytes() for path in folder.glob("wandb/offline-run-*/*.wandb"))
        assert [stored.count(word) > 0 for word in (b"eval/mean_return", b"0.125", b"learning_rate")] == [True] * 3
        assert list(folder.glob("wandb/offline-run-*/files/media/videos/*.gif"))


def test_a_launcher_shows_one_line_of_a_tracker_that_fails_and_waits_a_moment_for_one_that_hangs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("zerobeast.launcher.tracker.LIMIT_S", 5.0)
    config, own = RunConfig(name="x", root=str(folder.parent)), {**os.environ, "WANDB_API_KEY": "k"}
    with caplog.at_level(logging.WARNING):
        with (
            run_tracker(config, f"{tmp_path}/own.py:Broken", "p", own) as children,
            Gatherer(lambda: children) as pages,
        ):
            wait_until(lambda: pages.snapshot().warnings)
        [line] = pages.snapshot().warnings
        assert "the network is down;" in line
        assert children[0].spec.environ["WANDB_API_KEY"] == "k"
        assert len(caplog.messages) == 1
        with run_tracker(config, f"{tmp_path}/own.py:Stuck", "p", os.environ) as [child]:
            wait_until(lambda: (folder / ".tracked-Stuck.lock").exists())
        assert not running_still(child.pid)
    with run_tracker(config, "", "p", os.environ) as children:
        assert not children


def test_a_tracker_that_hangs_ends_with_its_launcher(folder: Path, tmp_path: Path) -> None:
    script = f"""
import os, psutil, time
from zerobeast.common.settings import RunConfig
from zerobeast.launcher.tracker import run_tracker
from zerobeast.testing.tracker import GIF

with run_tracker(RunConfig(name="x", root="{folder.parent}"), "{tmp_path}/own.py:Stuck", "p", os.environ):
    [child] = psutil.Process().children()
    while not os.path.exists("{folder}/.tracked-Stuck.json"):
        time.sleep(0.05)
    print(child.pid, flush=True)
    os.kill(os.getpid(), 9)
"""
    code, out, error = wait_for_end(python("-c", script))
    assert code == -9, error
    wait_until(lambda: not running_still(int(out)), 60.0)
