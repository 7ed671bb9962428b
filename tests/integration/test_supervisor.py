"""Every way in which a run can end, with small scripts in place of the services."""

import errno
import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.helpers import wait_until
from zerobeast.common.errors import BeastError
from zerobeast.common.files import run_files
from zerobeast.common.files.evaluation_queue import EvaluationQueue
from zerobeast.common.process.roles import ROLES
from zerobeast.launcher.child import Child, ChildSpec, await_end
from zerobeast.launcher.supervisor import Ending, Supervisor

#: prints "up", and on SIGTERM prints "down" and exits
OBEYS = """
import signal, sys, time
def down(*_):
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
while not pathlib.Path({other!r}).exists() or "up" not in pathlib.Path({other!r}).read_text():
    time.sleep(0.01)
print({last!r}, file=sys.stderr)
sys.exit({code})
"""
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


class Fleet:
    """A child of each role."""

    def __init__(self, folder: Path, **scripts: str) -> None:
        self.folder = folder
        texts = {role: scripts.get(role, OBEYS.format(code=0)) for role in (*ROLES, *scripts)}
        self.children = {role: self._child(role, text) for role, text in texts.items()}
        self.turns: list[Callable[[], None]] = []
        self.evaluations = 0  #: turns until no policy waits for an evaluation
        self.queue = EvaluationQueue(folder, 60.0)
        self.queue.waits = self._evaluating  # type: ignore[method-assign]
        self.supervisor = Supervisor(list(self.children.values()), self._watch, self.queue)

    def _child(self, role: str, text: str) -> Child:
        return Child(
            ChildSpec(
                role=role,
                index=0,
                command=[sys.executable, "-c", text],
                environ=dict(os.environ),
                log=self.log(role),
                status=self.folder / f"{role}.json",
            )
        )

    def log(self, role: str) -> Path:
        return self.folder / f"{role}-0.log"

    def _watch(self, stopping: bool) -> None:
        if self.turns and all(self.is_up(role) for role in self.children):
            self.turns.pop(0)()

    def _evaluating(self, _now: float) -> bool:
        self.evaluations -= 1
        return self.evaluations >= 0

    def is_up(self, role: str) -> bool:
        return self.children[role].code is not None or "up" in self.log(role).read_text()

    def run(self, *when_up: Callable[[], None]) -> Ending:
        """Run to the end; once every child says that it is up, call `when_up` one after another."""
        self.turns = list(when_up)
        ending = self.supervisor.run()
        for child in self.children.values():
            assert not psutil.pid_exists(child.pid), f"{child.spec.name} is left"
        return ending


def interrupt(number: int = signal.SIGINT) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def test_a_learner_that_ends_with_0_ends_the_run_with_0(tmp_path: Path) -> None:
    others_up = ENDS.format(other=str(tmp_path / "broker-0.log"), last="done", code=0)
    fleet = Fleet(tmp_path, learner=others_up)
    ending = fleet.run()
    assert (ending.code, ending.finished, ending.sentence) == (0, True, "")
    assert "down" in fleet.log("broker").read_text(), "the others were asked, not killed"


def test_the_last_evaluations_are_awaited_when_all_else_has_stopped(tmp_path: Path) -> None:
    others_up = ENDS.format(other=str(tmp_path / "broker-0.log"), last="done", code=0)
    fleet = Fleet(tmp_path, learner=others_up, evaluator=OBEYS.format(code=0))
    fleet.evaluations = 10
    ending = fleet.run()
    assert (ending.code, ending.finished, ending.sentence, fleet.evaluations) == (0, True, "", -1)
    broker, evaluator = (int(fleet.log(role).read_text().split()[2]) for role in ("broker", "evaluator"))
    assert evaluator - broker > 0.3e9, "the broker need not run that long"


def test_an_evaluator_that_makes_no_progress_does_not_hold_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zerobeast.common.files.evaluation_queue.STILL_S", 0.2)
    (tmp_path / run_files.TO_EVALUATE).mkdir()
    (tmp_path / run_files.TO_EVALUATE / "5.pt").touch()
    others_up = ENDS.format(other=str(tmp_path / "broker-0.log"), last="done", code=0)
    fleet = Fleet(tmp_path, learner=others_up, evaluator=OBEYS.format(code=0))
    queue = EvaluationQueue(tmp_path, 0.0)
    fleet.supervisor = Supervisor(list(fleet.children.values()), fleet._watch, queue)
    ending = fleet.run(lambda: os.kill(fleet.children["evaluator"].pid, signal.SIGSTOP))
    assert (ending.code, ending.finished) == (1, True)
    assert ending.sentence == f"1 in {tmp_path}/evaluate: no progress of an evaluator for 0.2 s"


@pytest.mark.parametrize("code", [2, 3])
def test_training_goes_on_without_an_evaluator_and_its_end_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    monkeypatch.setattr("zerobeast.launcher.supervisor.SETTLE_S", 0.0)
    learner = "print('up', flush=True)\n" + ENDS.format(other=str(tmp_path / "go"), last="done", code=0)
    fleet = Fleet(tmp_path, learner=learner, evaluator=f"print('evaluator: no'); import sys; sys.exit({code})")
    fleet.evaluations = 1000
    ending = fleet.run(lambda: None, lambda: None, lambda: (tmp_path / "go").write_text("up"))
    assert (ending.code, ending.finished) == (1, True)
    assert [record.args for record in caplog.records] == [(ending.sentence,)]
    assert ending.sentence.startswith("the evaluator has ended: no")
    assert "ended with exit code" in ending.sentence if code == 3 else "exit code" not in ending.sentence


def test_an_evaluator_that_has_ended_earlier_is_not_blamed_for_another_death(tmp_path: Path) -> None:
    dies = ENDS.format(other=str(tmp_path / "learner-0.log"), last="broker: the learner stayed away", code=75)
    ending = Fleet(tmp_path, evaluator="print('up')", broker=dies).run()
    assert (ending.code, ending.sentence) == (75, "the learner stayed away (broker 0 ended with exit code 75)")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_stops_all_in_order_and_is_the_exit_code(tmp_path: Path, number: int, code: int) -> None:
    fleet = Fleet(tmp_path)
    ending = fleet.run(interrupt(number))
    assert (ending.code, ending.finished, ending.sentence) == (code, False, "")
    words = [fleet.log(role).read_text().split() for role in ("actor", "envserver", "broker", "learner")]
    assert [entry[:2] for entry in words] == [["up", "down"]] * 4, "each was asked, none was killed"
    times = [int(entry[2]) for entry in words]
    assert times == sorted(times)


def test_a_terminal_that_hangs_up_stops_nothing_under_nohup(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert Fleet(tmp_path).run(interrupt(signal.SIGHUP), interrupt(signal.SIGTERM)).code == 143
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_before_the_children_are_up_stops_them_too(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.is_up = lambda role: True  # type: ignore[method-assign]
    assert fleet.run(interrupt()).code == 130


def test_a_child_that_ignores_sigterm_is_killed_and_the_learner_still_stops_cleanly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zerobeast.launcher.supervisor.STOP_LIMIT_S", 3.0)
    fleet = Fleet(tmp_path, actor=IGNORES)
    assert fleet.run(interrupt()).code == 130
    assert fleet.children["actor"].code == -signal.SIGKILL
    assert "down" in fleet.log("learner").read_text()


def test_signals_that_arrive_at_once_are_one_request(tmp_path: Path) -> None:
    """coreutils' `timeout` sends one to its child and one to the group."""
    takes_time = OBEYS.format(code=0).replace("def down(*_):", "def down(*_):\n    time.sleep(0.5)")
    fleet = Fleet(tmp_path, learner=takes_time)
    assert fleet.run(interrupt(), interrupt()).code == 130
    assert "down" in fleet.log("learner").read_text(), "it could write its checkpoint"


def test_a_second_interrupt_kills_everything_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zerobeast.common.process.signals.AT_ONCE_S", 0.0)
    fleet = Fleet(tmp_path, actor=IGNORES, learner=IGNORES)
    ending = fleet.run(interrupt(), interrupt())
    assert ending.code == 130
    assert {role: child.code for role, child in fleet.children.items()}["learner"] == -signal.SIGKILL


def test_a_learner_that_cannot_write_its_checkpoint_is_named_and_the_exit_code_is_1(tmp_path: Path) -> None:
    fails = OBEYS.format(code=2).replace(
        '"down", time.monotonic_ns()', '"learner: checkpoint.pt: cannot be written: disk full"'
    )
    ending = Fleet(tmp_path, learner=fails).run(interrupt())
    assert (ending.code, ending.sentence) == (1, "checkpoint.pt: cannot be written: disk full")


@pytest.mark.parametrize(("limit_s", "code"), [(60.0, 130), (0.2, 1)])
def test_a_learner_that_works_on_its_checkpoint_is_awaited_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_s: float, code: int
) -> None:
    monkeypatch.setattr("zerobeast.launcher.supervisor.STOP_LIMIT_S", 0.5)
    monkeypatch.setattr("zerobeast.launcher.supervisor.SAVE_LIMIT_S", limit_s)
    works = "def down(*_):\n    end = time.process_time() + 0.8\n    while time.process_time() < end:\n        pass"
    fleet = Fleet(tmp_path, learner=OBEYS.format(code=0).replace("def down(*_):", works))
    assert fleet.run(interrupt()).code == code


def test_a_learner_that_had_to_be_killed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zerobeast.launcher.supervisor.STOP_LIMIT_S", 1.0)
    monkeypatch.setattr("zerobeast.launcher.supervisor.QUIET_S", 0.3)
    ending = Fleet(tmp_path, learner=IGNORES).run(interrupt())
    assert ending.code == 1
    assert "was killed" in ending.sentence


@pytest.mark.parametrize(
    ("last", "own", "code", "sentence"),
    [
        ("broker: cannot listen", 2, 2, "cannot listen"),
        ("broker: env.id: unknown\nbroker: seed: too low", 2, 2, "env.id: unknown\nseed: too low"),
        ("broker: the learner stayed away", 75, 75, "the learner stayed away (broker 0 ended with exit code 75)"),
        ("ValueError: boom", 1, 1, "broker 0 ended with exit code 1; its log: {log}\n  ValueError: boom"),
        ("bye", 0, 1, "broker 0 ended with exit code 0; its log: {log}\n  bye"),
    ],
)
def test_a_dead_child_is_named_and_explained(tmp_path: Path, last: str, own: int, code: int, sentence: str) -> None:
    dies = ENDS.format(other=str(tmp_path / "learner-0.log"), last=last, code=own)
    (tmp_path / "broker-0.log").write_text("broker: a complaint of an earlier start\n")
    fleet = Fleet(tmp_path, broker=dies)
    ending = fleet.run()
    assert (ending.code, ending.finished) == (code, False)
    assert ending.sentence == sentence.format(log=fleet.log("broker"))
    assert "down" in fleet.log("learner").read_text(), "the learner could write its checkpoint"


def test_whoever_removes_the_folder_of_a_run_is_told_so(tmp_path: Path) -> None:
    log = tmp_path / "run" / "logs" / "learner-0.log"
    log.parent.mkdir(parents=True)
    child = Child(ChildSpec("learner", 0, [sys.executable, "-S", "-c", "raise SystemExit(2)"], {}, log, Path()))
    child.start()
    shutil.rmtree(log.parents[1])
    assert await_end([child], 10)
    assert child.explain() == f"the folder of the run has been removed while it trained: {log.parents[1]}"


def test_of_several_deaths_the_one_that_names_bad_input_is_reported(tmp_path: Path) -> None:
    learner = str(tmp_path / "learner-0.log")
    broker = ENDS.format(other=learner, last="broker: the actor is gone", code=75)
    after_broker = f"import time; time.sleep(0.1)\n{ENDS.format(other=learner, last='actor: no such game', code=2)}"
    ending = Fleet(tmp_path, broker=broker, actor=after_broker).run()
    assert (ending.code, ending.sentence) == (2, "no such game")


def test_children_that_die_are_started_again_and_a_learner_with_all_of_its_ranks(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, learner=OBEYS.format(code=0), worker=OBEYS.format(code=0))
    other = fleet.children["other rank"] = fleet._child("learner", OBEYS.format(code=0))
    other.spec = ChildSpec(**vars(other.spec) | {"index": 1, "log": fleet.log("other rank")})
    fleet.supervisor = Supervisor(list(fleet.children.values()), fleet._watch, restarts=2)
    pids: list[dict[str, int]] = []

    def kill(name: str, *again: str) -> None:
        pids.append({name: child.pid for name, child in fleet.children.items()})
        for one in again:
            fleet.log(one).write_text("")  # so that the next kill waits for it
        os.kill(pids[-1][name], signal.SIGKILL)

    fleet.is_up = lambda name: "up" in fleet.log(name).read_text()  # type: ignore[method-assign]
    ranks = ("learner", "other rank")
    ending = fleet.run(lambda: kill(ranks[1], *ranks), lambda: kill("worker", "worker"), lambda: kill("broker"))
    assert (ending.code, ending.sentence.partition(" (")[0]) == (1, "broker 0 was killed by SIGKILL")
    first, second, third = pids
    assert {name for name in first if first[name] != second[name]} == {"learner", "other rank"}
    assert {name for name in first if second[name] != third[name]} == {"worker"}


@pytest.mark.parametrize(("victim", "code"), [("learner", 0), ("actor", 1)])
def test_by_default_what_a_signal_has_ended_is_started_again_but_no_learner_and_not_for_ever(
    tmp_path: Path, victim: str, code: int
) -> None:
    fleet = Fleet(tmp_path, actor=OBEYS.format(code=1))
    fleet.supervisor = Supervisor(list(fleet.children.values()), fleet._watch, restarts=None)
    pids: list[int] = []

    def end(role: str, number: int = signal.SIGKILL) -> None:
        pids.append(fleet.children["actor"].pid)
        fleet.log(role).write_text("")  # so that the next waits for it
        os.kill(fleet.children[role].pid, number)

    fleet.is_up = lambda name: "up" in fleet.log(name).read_text()  # type: ignore[method-assign]
    stop = partial(end, victim, signal.SIGTERM if code else signal.SIGKILL)
    ending = fleet.run(lambda: end("actor"), lambda: end("broker", signal.SIGTERM), stop)
    assert ending.code == 1
    assert ending.sentence.startswith(f"{victim} 0 {'ended with exit code 1' if code else 'was killed by SIGKILL'}")
    assert len(set(pids)) == 2


def test_bad_input_is_not_tried_again(tmp_path: Path) -> None:
    fleet = Fleet(
        tmp_path, actor=ENDS.format(other=str(tmp_path / "learner-0.log"), last="actor: no such game", code=2)
    )
    fleet.supervisor = Supervisor(list(fleet.children.values()), fleet._watch, restarts=9)
    assert fleet.run() == Ending(2, "no such game")


def test_a_child_that_cannot_be_started_stops_the_rest(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    spec = fleet.children["actor"].spec
    fleet.children["actor"].spec = ChildSpec(**vars(spec) | {"command": ["/nonexistent/python"]})
    ending = fleet.run()
    assert ending.code == 1
    assert "cannot start actor 0" in ending.sentence


def test_a_child_for_which_there_is_no_process_has_the_reason_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_args: object, **_settings: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("subprocess.Popen", exhausted)
    with pytest.raises(BeastError, match=r"^cannot start actor 0: Too many open files$"):
        Fleet(tmp_path).children["actor"].start()


def test_a_killed_child_is_reported_with_its_signal_and_its_own_children_end_too(tmp_path: Path) -> None:
    spawns = textwrap.dedent("""
        import subprocess, sys, time
        helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print("helper", helper.pid, "up", flush=True)
        time.sleep(600)
    """)
    fleet = Fleet(tmp_path, envserver=spawns)
    ending = fleet.run(lambda: os.kill(fleet.children["envserver"].pid, signal.SIGKILL))
    assert ending.code == 1
    assert ending.sentence.startswith("envserver 0 was killed by SIGKILL")
    helper = int(fleet.log("envserver").read_text().split()[1])
    wait_until(lambda: not psutil.pid_exists(helper) or psutil.Process(helper).status() == psutil.STATUS_ZOMBIE)


def test_an_error_of_the_launcher_itself_leaves_no_child(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)

    def fail() -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        fleet.run(fail)
    assert not any(psutil.pid_exists(child.pid) for child in fleet.children.values())


@pytest.mark.parametrize("full", [False, True])
def test_logs_are_bounded_and_their_last_lines_are_found_nevertheless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    monkeypatch.setattr("zerobeast.launcher.child.LOG_PERIOD_S", 0.001)
    fleet = Fleet(tmp_path, broker=PRINTS)
    broker, log = fleet.children["broker"], fleet.log("broker")
    broker.spec = ChildSpec(**vars(broker.spec) | {"log_bytes": 5000})
    older = log.with_name("broker-0.log.1")
    if full:
        older.mkdir()  # nothing can be copied there either
    ending = fleet.run()
    assert log.stat().st_size < 20_000, "not all that it has printed"
    if not full:
        assert 0 < older.stat().st_size <= 5000
    assert f"{'x' * 99} 298\n  {'x' * 99} 299" in ending.sentence
