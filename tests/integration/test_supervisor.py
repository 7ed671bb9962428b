"""Every way in which a run can end, with small scripts in place of the services."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.helpers import running_still, wait_until
from zerobeast.common.files import run_files
from zerobeast.common.files.evaluation_queue import EvaluationQueue
from zerobeast.common.health import status
from zerobeast.common.process.roles import ROLES
from zerobeast.launcher.child import Child
from zerobeast.launcher.supervisor import Ending, Supervisor
from zerobeast.plan.processes import RESTARTS, ProcessSpec, restart_of

#: prints "up", and on SIGTERM prints "down" and exits
OBEYS = """
import signal, sys, time
def down(*_):
    {first}
    print("down", time.monotonic_ns(), flush=True)
    sys.exit({code})
signal.signal(signal.SIGTERM, down)
print("up", flush=True)
while True:
    time.sleep(0.01)
"""
IGNORES = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
#: ends by itself once another child is up
ENDS = """
import pathlib, sys, time
other = pathlib.Path(sys.argv[1]) / "{other}-0.log"
while not other.exists() or "up" not in other.read_text():
    time.sleep(0.01)
print({last!r}, file=sys.stderr)
{record}
sys.exit({code})
"""
SPAWNS = """
import subprocess, sys, time
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("helper", helper.pid, "up", flush=True)
time.sleep(600)
"""
WORKS = "end = time.process_time() + 0.6\n    while time.process_time() < end: pass"
#: 30 KB in 0.6 s
PRINTS = """
import sys, time
lines = [f"{'x' * 99} {i}" for i in range(300)]
for line in lines[:-2]:
    print(line, flush=True)
    time.sleep(0.002)
time.sleep(0.5)  # what is written while a log is emptied is lost
print(*lines[-2:], sep="\\n", flush=True)
sys.exit(3)
"""


def obeys(code: int = 0, first: str = "pass") -> str:
    return OBEYS.format(code=code, first=first)


def dies(last: str, code: int, other: str = "learner") -> str:
    """Ends so once another child is up; `last` is its last line, and with "role: " first also its exit record."""
    return ENDS.format(other=other, last=last, code=code, record=record(last, code))


def record(last: str, code: int) -> str:
    role, failed, _ = last.partition(": ")
    end = {"state": "failed", "sentence": last.replace(f"{role}: ", ""), "code": code}
    text = f"json.dumps({end} | {{'pid': os.getpid()}})"
    return f"import json, os, sys; open(sys.argv[1] + '/{role}.json', 'w').write({text})" if failed else ""


class Fleet:
    """A child of each role."""

    def __init__(self, folder: Path, restarts: int | None = 0, **scripts: str) -> None:
        self.folder, self.restarts = folder, restarts
        texts = {role: scripts.get(role, obeys()) for role in (*ROLES, *scripts)}
        self.children = {role: self.child(role, text) for role, text in texts.items()}
        self.turns: list[Callable[[], Any]] = []
        self.evaluations = 0  #: turns until no policy waits for an evaluation
        self.queue = EvaluationQueue(folder, 0.0)

    def child(self, role: str, text: str) -> Child:
        command, page = [sys.executable, "-c", text, str(self.folder)], self.folder / f"{role}.json"
        more = {"restart": restart_of(role, self.restarts)}
        return Child(ProcessSpec(role, 0, command, dict(os.environ), self.log(role), page, **more))

    def log(self, name: str) -> Path:
        return self.folder / f"{name}-0.log"

    def down(self, name: str) -> int:
        """When a child was asked to stop; 0: it was not, or could not obey."""
        words = self.log(name).read_text().split()
        return int(words[words.index("down") + 1]) if "down" in words else 0

    def watch(self, stopping: bool) -> None:
        if self.turns and all(self.is_up(role) for role in self.children):
            self.turns.pop(0)()

    def evaluating(self, _now: float) -> bool:
        self.evaluations -= 1
        return self.evaluations >= 0

    def is_up(self, name: str) -> bool:
        ended = self.restarts == 0 and self.children[name].code is not None
        return ended or "up" in self.log(name).read_text()

    def end(self, name: str, number: int = signal.SIGKILL, *clear: str) -> dict[str, int]:
        """Send a child a signal, and wait anew for those in `clear` to come up; returns the ids of all until then."""
        pids = {name: child.pid for name, child in self.children.items()}
        for one in clear:
            self.log(one).write_text("")
        os.kill(pids[name], number)
        return pids

    def run(self, *when_up: Callable[[], Any]) -> Ending:
        """Run to the end; once every child says that it is up, call `when_up` one after another."""
        self.turns = list(when_up)
        if self.evaluations:
            self.queue.waits = self.evaluating  # type: ignore[method-assign]
        restarts = RESTARTS if self.restarts is None else self.restarts
        ending = Supervisor(list(self.children.values()), self.watch, self.queue, restarts).run()
        for child in self.children.values():
            assert not psutil.pid_exists(child.pid), f"{child.spec.name} is left"
        return ending


def interrupt(number: int = signal.SIGINT) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


FULL = record("learner: the disk is full", 2)
LOST = dies("broker: it stayed away", 75)
EVALUATED = {"evaluator": "print('up')", "broker": LOST}
UNEXPLAINED = "broker 0 ended with exit code 1; its log: {folder}/broker-0.log\n  ValueError boom"
NOW = {"supervisor.STOP_LIMIT_S": 1.0, "supervisor.QUIET_S": 0.3}
SAVING = {"supervisor.STOP_LIMIT_S": 0.5, "supervisor.SAVE_LIMIT_S": 60.0}
TOO_LONG = {"supervisor.STOP_LIMIT_S": 0.5, "supervisor.SAVE_LIMIT_S": 0.2, "supervisor.QUIET_S": 60.0}
AT_ONCE = {"AT_ONCE_S": 0.0}


@pytest.mark.parametrize(
    ("scripts", "when_up", "limits", "ending", "killed"),
    [
        ({"learner": dies("done", 0, "broker")}, [], {}, Ending(0, finished=True), set()),
        ({}, [interrupt(signal.SIGTERM)], {}, Ending(143), set()),
        ({"actor": IGNORES}, [interrupt()], {"supervisor.STOP_LIMIT_S": 3.0}, Ending(130), {"actor"}),
        (dict.fromkeys(("actor", "learner"), IGNORES), [interrupt()] * 2, AT_ONCE, Ending(130), {"actor", "learner"}),
        ({"learner": obeys(2, FULL)}, [interrupt()], {}, Ending(1, "the disk is full"), set()),
        ({"learner": obeys(0, WORKS)}, [interrupt()], SAVING, Ending(130), set()),
        ({"learner": obeys(0, "time.sleep(3)")}, [interrupt()], TOO_LONG, Ending(1), {"learner"}),
        ({"learner": IGNORES}, [interrupt()], NOW, Ending(1), {"learner"}),
        ({"broker": dies("broker: one\nbroker: two", 2)}, [], {}, Ending(2, "one\ntwo"), set()),
        ({"broker": dies("ValueError boom", 1)}, [], {}, Ending(1, UNEXPLAINED), set()),
        (EVALUATED, [], {}, Ending(75, "it stayed away (broker 0 ended with exit code 75)"), set()),
    ],
)
def test_how_a_run_ends(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scripts: dict[str, str],
    when_up: list[Callable[[], None]],
    limits: dict[str, float],
    ending: Ending,
    killed: set[str],
) -> None:
    for name, value in limits.items():
        module = "zerobeast.launcher" if "." in name else "zerobeast.common.process.signals"
        monkeypatch.setattr(f"{module}.{name}", value)
    (tmp_path / "broker.json").write_text('{"state": "failed", "sentence": "of an earlier start", "code": 1}')
    fleet = Fleet(tmp_path, **scripts)
    found = fleet.run(*when_up)
    assert (found.code, found.finished) == (ending.code, ending.finished)
    if "learner" not in killed:
        assert found.sentence == ending.sentence.format(folder=tmp_path)
    ended_by_force = {role for role, child in fleet.children.items() if child.code == -signal.SIGKILL}
    assert killed <= ended_by_force
    if limits == AT_ONCE:
        return  # whether one that obeys is quick enough is chance
    assert ended_by_force == killed
    obeying = [role for role in ("actor", "envserver", "broker", "learner") if role not in {*scripts, *killed}]
    times = [time for role in obeying if (time := fleet.down(role))]
    if when_up:  # or else one may be asked before it can obey
        assert len(times) == len(obeying), "each was asked, and could write a checkpoint"
    assert times == sorted(times)


def test_the_last_evaluations_are_awaited_if_they_make_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(tmp_path, learner=dies("done", 0, "broker"), evaluator=obeys())
    fleet.evaluations = 10
    assert (fleet.run(), fleet.evaluations) == (Ending(0, finished=True), -1)
    assert fleet.down("evaluator") > fleet.down("broker"), "which need not run that long"
    monkeypatch.setattr("zerobeast.common.files.evaluation_queue.STILL_S", 0.2)
    waiting = tmp_path / "stalled" / run_files.TO_EVALUATE / "5.pt"
    waiting.parent.mkdir(parents=True)
    waiting.touch()
    fleet = Fleet(tmp_path / "stalled", learner=dies("done", 0, "broker"), evaluator=obeys())
    ending = fleet.run(lambda: fleet.end("evaluator", signal.SIGSTOP))
    assert ending == Ending(1, fleet.queue.trouble, finished=True)
    assert ending.sentence


@pytest.mark.parametrize("code", [2, 3])
def test_training_goes_on_without_an_evaluator_and_its_end_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    monkeypatch.setattr("zerobeast.launcher.supervisor.SETTLE_S", 0.0)
    learner = f"print('up', flush=True)\n{dies('done', 0, 'go')}"
    fleet = Fleet(tmp_path, learner=learner, evaluator=f"{record('evaluator: no', code)}\nsys.exit({code})")
    fleet.evaluations = 1000
    ending = fleet.run(lambda: None, lambda: None, lambda: fleet.log("go").write_text("up"))
    assert (ending.code, ending.finished) == (1, True)
    assert [record.args for record in caplog.records] == [(ending.sentence,)]
    assert ("exit code 3" in ending.sentence) == (code == 3), "else its own sentence is enough"


def test_signals_stop_children_that_start_and_nothing_under_nohup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert Fleet(tmp_path).run(interrupt(signal.SIGHUP), interrupt(signal.SIGTERM)).code == 143
    finally:
        signal.signal(signal.SIGHUP, before)
    monkeypatch.setattr(Fleet, "is_up", lambda *_: True)
    assert Fleet(tmp_path).run(interrupt()).code == 130


def test_children_that_die_are_started_again_and_a_learner_with_all_of_its_ranks(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, restarts=2, worker=obeys())
    other = fleet.children["other rank"] = fleet.child("learner", obeys())
    other.spec = ProcessSpec(**vars(other.spec) | {"index": 1, "log": fleet.log("other rank")})
    pids, ranks = list[dict[str, int]](), ("learner", "other rank")
    ending = fleet.run(
        lambda: pids.append(fleet.end(ranks[1], signal.SIGKILL, *ranks)),
        lambda: pids.append(fleet.end("worker", signal.SIGKILL, "worker")),
        lambda: pids.append(fleet.end("broker")),
    )
    assert (ending.code, ending.sentence.partition(" was ")[0]) == (1, "broker 0")
    first, second, third = pids
    assert {name for name in first if first[name] != second[name]} == {"learner", "other rank"}
    assert {name for name in first if second[name] != third[name]} == {"worker"}


def test_a_process_that_is_started_again_has_another_start(tmp_path: Path) -> None:
    command = ("sh", "-c", 'echo "$@"', "-", "--start", "7")
    child = Child(ProcessSpec("actor", 0, command, {}, tmp_path / "log", tmp_path / "actor-0.json", start=7))
    for _ in range(3):
        child.start()
        wait_until(lambda: child.poll() is not None)
    starts = [line.split()[-1] for line in (tmp_path / "log").read_text().splitlines()]
    assert starts == ["7", "8", "9"]


@pytest.mark.parametrize(("victim", "code"), [("learner", 0), ("actor", 1)])
def test_by_default_what_a_signal_has_ended_is_started_again_but_no_learner_and_not_for_ever(
    tmp_path: Path, victim: str, code: int
) -> None:
    fleet, pids = Fleet(tmp_path, restarts=None, actor=obeys(1)), list[dict[str, int]]()
    ending = fleet.run(
        lambda: pids.append(fleet.end("actor", signal.SIGKILL, "actor")),
        lambda: pids.append(fleet.end("broker", signal.SIGTERM, "broker")),
        lambda: pids.append(fleet.end(victim, signal.SIGTERM if code else signal.SIGKILL)),
    )
    assert (ending.code, ending.sentence.partition(" 0 ")[0]) == (1, victim)
    assert len({each["actor"] for each in pids}) == 2


def test_a_child_that_cannot_be_started_stops_the_rest_as_does_an_error_of_the_launcher(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.children["actor"].spec = ProcessSpec(**vars(fleet.children["actor"].spec) | {"command": ["/nonexistent"]})
    ending = fleet.run()
    assert (ending.code, "actor 0" in ending.sentence) == (1, True)
    fleet = Fleet(tmp_path)
    with pytest.raises(ZeroDivisionError):
        fleet.run(lambda: 1 // 0)
    assert not any(psutil.pid_exists(child.pid) for child in fleet.children.values())


def test_a_killed_child_is_reported_with_its_signal_and_its_own_children_end_too(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, envserver=SPAWNS)
    ending = fleet.run(lambda: os.kill(fleet.children["envserver"].pid, signal.SIGKILL))
    assert (ending.code, "SIGKILL" in ending.sentence, "\n" in ending.sentence) == (1, True, False)
    ends = {role: status.end_of(child.spec.statuses, child.pid) for role, child in fleet.children.items()}
    state, sentence, code = ends.pop("envserver") or ("", "", 0)
    assert (state, code, "SIGKILL" in sentence) == ("killed", -9, True)
    assert {*ends.values()} == {status.ExitRecord("stopped", "exit code 0", 0)}
    helper = int(fleet.log("envserver").read_text().split()[1])
    wait_until(lambda: not running_still(helper))


def test_of_several_deaths_the_one_that_names_bad_input_is_reported_and_that_is_not_tried_again(tmp_path: Path) -> None:
    after_broker = f"import time; time.sleep(0.1)\n{dies('actor: no such game', 2)}"
    fleet = Fleet(tmp_path, restarts=9, broker=dies("broker: the actor is gone", 75), actor=after_broker)
    assert fleet.run() == Ending(2, "no such game")


def test_logs_are_bounded_and_their_last_lines_are_still_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zerobeast.launcher.child.LOG_PERIOD_S", 0.001)
    fleet = Fleet(tmp_path, broker=PRINTS)
    broker, log = fleet.children["broker"], fleet.log("broker")
    broker.spec = ProcessSpec(**vars(broker.spec) | {"log_bytes": 5000})
    ending = fleet.run()
    assert log.stat().st_size < 20_000, "not all that it has printed"
    assert 0 < log.with_name("broker-0.log.1").stat().st_size <= 5000
    assert f"{'x' * 99} 298\n  {'x' * 99} 299" in ending.sentence
