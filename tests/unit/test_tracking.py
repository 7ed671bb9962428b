"""A tracker gets every row of a run once, however files grow, and a failure costs a line and no row."""

import logging
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.files import evaluations, requests
from zerobeast.services.learner import recorder
from zerobeast.testing import tracker as contract
from zerobeast.testing.rules import Rule
from zerobeast.tracking.feed import Feed, Item
from zerobeast.tracking.process import Follower, follow_run, hold_lock
from zerobeast.tracking.sinks import TrackedRun, load_tracker

HEADER = "elapsed_s,agent_steps,loss,mean_return_100\n"


def grow(folder: Path, *rows: str) -> None:
    path = folder / "metrics.csv"
    with path.open("a") as file:
        file.write("".join(rows) if path.stat().st_size else HEADER + "".join(rows))


def evaluation(steps: int, env: str = "A", **more: float) -> evaluations.Row:
    return {"agent_steps": steps, "env": env, "actions": "greedy", "mean_return": 1.5, "returns": [1.0, 2.0]} | more


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "metrics.csv").touch()
    (tmp_path / "config.yaml").write_text("name: x\nseed: 3\nsecurity: {keys: k}\nalgo: evil:SPEC\n")
    return tmp_path


def test_rows_come_once_and_whole_and_a_file_that_was_trimmed_goes_on(folder: Path) -> None:
    feed = Feed(folder, folder / ".position")
    assert list(feed.new()) == []
    grow(folder, "1.0,10,0.5,\n", "2.0,20,0")
    assert list(feed.new()) == [Item(10, {"train/elapsed_s": 1.0, "train/loss": 0.5})]
    grow(folder, ".25,7\n")
    assert list(feed.new()) == [Item(20, {"train/elapsed_s": 2.0, "train/loss": 0.25, "train/mean_return_100": 7.0})]
    trimmed = folder / "new"
    trimmed.write_text(f"{HEADER}1.0,10,0.5,\n2.5,15,9,\n3.0,30,1,\n")
    trimmed.replace(folder / "metrics.csv")  # as by a learner that continues from a checkpoint
    assert [item.agent_steps for item in feed.new()] == [30]
    requests.post_request(folder, requests.LOG, {"own": 2.0})
    recorder.amend(folder, requests.select_loggable(folder, requests.take_requests(folder)[requests.LOG], ()))
    assert list(feed.new()) == [Item(30, {"train/own": 2.0})], "what was logged after the last row"
    assert list(Feed(folder, folder / ".position").new()) == []


def test_evaluations_and_videos_come_with_their_steps(folder: Path) -> None:
    evaluations.write_evaluations(folder, [evaluation(5, **{"info/won": 0.5}), evaluation(5, "B")])
    (folder / "videos").mkdir()
    for name in ("400.mp4", "400-sampled.mp4", "best.gif", ".half.mp4", "notes.txt"):
        (folder / "videos" / name).touch()
    (folder / "videos/secret.mp4").symlink_to("/etc/passwd")
    feed = Feed(folder, folder / ".position")
    assert list(feed.new()) == [
        Item(5, {"eval/mean_return/A": 1.5, "eval/info/won/A": 0.5, "eval/mean_return/B": 1.5}),
        Item(400, folder / "videos/400-sampled.mp4"),
        Item(400, folder / "videos/400.mp4"),
        Item(0, folder / "videos/best.gif"),
    ]
    assert list(feed.new()) == []
    sampled = evaluation(7, actions="sampled", mean_return=0.5)
    evaluations.write_evaluations(folder, [evaluation(5), evaluation(7), sampled])
    assert list(feed.new()) == [Item(7, {"eval/mean_return": 1.5, "eval/mean_return-sampled": 0.5})]


class Fake:
    """A tracker that can be out of reach."""

    reachable, made, got = True, list[TrackedRun](), list[int]()

    def __init__(self, tracked: TrackedRun) -> None:
        self.made.append(tracked)

    def write(self, _values: Any, agent_steps: int) -> None:
        if not self.reachable:
            raise ConnectionError("no route\nto host.")
        self.got.append(agent_steps)

    def close(self) -> None:
        self.got.append(-1)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    for name, value in (("reachable", True), ("made", []), ("got", [])):
        monkeypatch.setattr(Fake, name, value)
    return Fake


def test_a_tracker_out_of_reach_costs_one_line_and_no_row(
    folder: Path, fake: type[Fake], caplog: pytest.LogCaptureFixture
) -> None:
    follower = Follower(folder, "fake", fake, "p")
    for steps in (10, 20, 30, 40):
        fake.reachable = steps <= 20
        grow(folder, f"1,{steps},,\n")
        follower.turn()
    [line] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "no route to host;" in line
    with pytest.raises(BeastError):
        follower.close()
    fake.reachable = True
    follower.turn()
    assert fake.got == [10, 20, -1, 30, 40], "it is closed whatever has failed before"


def test_a_process_continues_where_another_ended_or_was_killed_as_the_same_run(folder: Path, fake: type[Fake]) -> None:
    follow_run(Follower(folder, "fake", fake, "p"), lambda: True)
    assert fake.made == [], "nothing to say yet"
    grow(folder, *(f"1,{steps},,\n" for steps in (10, 20, 30)))
    killed = iter(Feed(folder, folder / ".tracked-fake.json").new())
    assert [next(killed).agent_steps for _ in range(2)] == [10, 20]
    follow_run(Follower(folder, "fake", fake, "p"), lambda: True)
    assert fake.got == [20, 30, -1], "the one that was handed over when it was killed, and what is new"
    grow(folder, "1,40,,\n")
    follow_run(Follower(folder, "fake", fake, "p"), lambda: True)
    assert fake.got[3:] == [40, -1]
    first, second = fake.made
    assert (first.name, first.project, first.config) == ("x", "p", {"name": "x", "seed": 3, "algo": "evil:SPEC"})
    assert first.id == second.id == Feed(folder, folder / ".tracked-fake.json").position.id
    (folder / ".tracked-fake.json").write_text('{"id": 3}')
    follow_run(Follower(folder, "fake", fake, "p"), lambda: True)
    assert fake.got[5:] == [10, 20, 30, 40, -1], "a position that is no such counts for nothing"


def test_what_cannot_be_tracked_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hold_lock(folder, "fake"), pytest.raises(ConfigError), hold_lock(folder, "fake"):
        pytest.fail("another process hands it over")
    monkeypatch.setattr("zerobeast.tracking.sinks.find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match="wandb"):
        load_tracker("wandb")
    with pytest.raises(ConfigError):
        Follower(folder / "nowhere", "fake", Fake, "p")


@pytest.fixture(params=["trackio", "wandb"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A fake of the package of a tracker."""
    fake = MagicMock(__spec__=SimpleNamespace(name=request.param))
    monkeypatch.setitem(sys.modules, request.param, fake)
    fake.tracker = request.param
    return fake


@pytest.mark.parametrize("rule", contract.RULES, ids=str)
def test_every_tracker_keeps_the_rules(rule: Rule, library: Any, tmp_path: Path) -> None:
    rule(library.tracker, tmp_path)
    assert library.init.call_args.kwargs["resume"] == "allow"
    assert {"project", "0a1b2c3d"} <= set(re.findall(r"\w+", str(library.init.call_args)))
    assert library.finish.called or library.init.return_value.finish.called
