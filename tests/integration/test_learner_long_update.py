"""Services that share a process, and an update of any length: peers are answered, nobody ends, no signal waits."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.build.learners import Clock, FakeActor, feed, learner_for, open_learner, rollout_rows, run_config
from tests.helpers import wait_until
from tests.integration.trivial_service import Trivial
from zerobeast.common.config.process import Instance
from zerobeast.common.files.evaluation_queue import EvaluationQueue
from zerobeast.common.service import base, computation, entry, loop
from zerobeast.common.service.health_server import HealthServer
from zerobeast.common.service.loop import Loop
from zerobeast.common.settings.run import HealthConfig
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.transport import Context, WeightsSubscriber
from zerobeast.common.wire.messages import Kind
from zerobeast.services.actor.service import Actor
from zerobeast.services.actor.waits import Timeouts
from zerobeast.services.broker.service import Broker
from zerobeast.services.envserver.service import EnvServer
from zerobeast.services.learner import folder
from zerobeast.services.learner.checkpoint import load_checkpoint
from zerobeast.services.learner.coordination import SoloCoordinator
from zerobeast.services.learner.service import Learner
from zerobeast.services.learner.update import Trainer


class Gate:
    """Holds updates up, in a call without the interpreter's lock, as a backward pass is one."""

    def __init__(self, shut: int) -> None:
        self.began, self.updates = threading.Event(), 0
        self._shut, self._open = shut, threading.Event()  #: the number of the update that is held up

    def trainer(self, *args: Any) -> Trainer:
        """A trainer whose updates pass through here."""
        trainer = Trainer(*args)
        step = trainer.learning.step

        def slow(agent_steps: int) -> Any:
            self.updates += 1
            learned = step(agent_steps)  # so that an update that is held up has changed the weights already
            if self.updates == self._shut:
                self.began.set()
                self._open.wait()
            return learned

        trainer.learning.step = slow  # type: ignore[method-assign]
        return trainer

    def open(self) -> None:
        self._open.set()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """An update lasts, and is long, after a moment."""
    monkeypatch.setattr(computation, "LASTING_S", 0.05)
    monkeypatch.setattr(loop, "ATTEND_S", 0.01)
    monkeypatch.setattr(folder, "LONG_S", 0.0)


@contextmanager
def attended(learner: Learner) -> Iterator[Callable[[], None]]:
    """The learner's loop in threads of its own; yields what stops it and raises what it raised."""
    whole = Loop([learner])
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(whole.run_in_own_thread)

        def end() -> None:
            whole.stop()
            ended.result(30)

        try:
            yield end
        finally:
            whole.stop()


def talk(actors: list[FakeActor], learner: Learner, until: Callable[[], Any]) -> None:
    wait_until(lambda: ([actor.turn(learner.clock()) for actor in actors], until())[1])


def test_actors_subscribers_and_the_page_are_answered_during_an_update(tmp_path: Path, context: Context) -> None:
    gate, config = Gate(shut=1), run_config(tmp_path, endpoint=f"ipc://{tmp_path}/l")
    learner = learner_for(config, make_trainer=gate.trainer)
    with (
        attended(learner) as end,
        HealthServer(learner, HealthConfig()) as health,
        closing(FakeActor(context, config.learner.endpoint)) as actor,
        closing(FakeActor(context, config.learner.endpoint)) as late,
        closing(WeightsSubscriber(context, config.learner.endpoint)) as subscriber,
    ):
        talk([actor], learner, lambda: actor.stream.open)
        actor.push(1, rollout_rows(4))
        talk([actor], learner, gate.began.is_set)
        talk([late], learner, lambda: late.stream.open)
        late.push(1, rollout_rows(4))
        wait_until(lambda: learner.page.get("queue_rows") == 8)
        assert learner.page["peers"] == 2
        assert learner.page["computing_s"] > 0
        found = wait_until(subscriber.receive)
        assert (found.header.kind, found.header.body[0]) == (Kind.WEIGHTS, 0), "nothing of an update before its end"
        assert not actor.acked
        assert health.page()["live"]
        gate.open()
        talk([actor, late], learner, lambda: actor.acked and late.acked)
        end()
    assert learner.report()["updates"] == 2
    assert load_checkpoint(config.folder / "checkpoint.pt")["counters"]["updates"] == 2


@contextmanager
def held_up(folder: Path, context: Context, gate: Gate) -> Iterator[tuple[Learner, FakeActor, Callable[[], int]]]:
    """A learner that is held up in its second update, an actor, and what ends the learner."""
    config = run_config(folder, endpoint=f"ipc://{folder}/l")
    learner = learner_for(config, make_trainer=gate.trainer)
    with attended(learner) as end, closing(FakeActor(context, config.learner.endpoint)) as actor:
        talk([actor], learner, lambda: actor.stream.open)
        actor.push(1, rollout_rows(4), [[7.0, 10]])
        actor.push(2, rollout_rows(4))
        talk([actor], learner, gate.began.is_set)
        yield learner, actor, end


def test_a_learner_that_is_asked_to_stop_ends_within_an_update_with_all_that_was_learned_before(
    tmp_path: Path, context: Context
) -> None:
    gate = Gate(shut=2)
    with held_up(tmp_path, context, gate) as (learner, actor, end):
        end()
        talk([actor], learner, lambda: actor.replies[-1].kind is Kind.BYE)
        assert actor.acked == [1]
    counters = load_checkpoint(learner.config.folder / "checkpoint.pt")["counters"]
    assert (counters["updates"], counters["agent_steps"], gate.updates) == (1, 20, 2)
    with open_learner(learner.config) as again, closing(FakeActor(context, again.config.learner.endpoint)) as actor:
        feed(again, actor, range(1, 2))
        assert (again.report()["agent_steps"], again.report()["episodes"]) == (40, 2)


@pytest.mark.parametrize("several", [False, True], ids=["alone", "one of several ranks"])
def test_an_update_that_no_checkpoint_precedes_or_that_other_ranks_share_is_finished_first(
    tmp_path: Path, context: Context, monkeypatch: pytest.MonkeyPatch, *, several: bool
) -> None:
    if not several:
        monkeypatch.setattr(folder, "LONG_S", 100.0)
    gate = Gate(shut=2)
    with held_up(tmp_path, context, gate) as (learner, actor, end):
        monkeypatch.setattr(SoloCoordinator, "several", several)
        learner.stop()
        talk([actor], learner, lambda: learner.page["computing_s"] > 0)
        gate.open()
        end()
    assert load_checkpoint(learner.config.folder / "checkpoint.pt")["counters"]["updates"] == 2


def test_a_run_goes_on_after_an_update_that_is_longer_than_any_timeout(tmp_path: Path) -> None:
    small = run_config(tmp_path, env="CartPole-v1", total_steps=10_000).model_dump()
    for name in ("learner", "broker", "envserver"):
        small[name]["endpoint"] = f"ipc://{tmp_path}/{name[0]}"
    small["actor"] |= {"env_groups": 1, "connect_timeout_s": 0.8}
    small["envserver"]["in_process"] = True
    config, gate, own = RunConfig.model_validate(small), Gate(shut=2), Instance(index=0)
    learner = Learner(config, own, make_trainer=gate.trainer)
    actor = Actor(config, own, timeouts=Timeouts(silent=0.3, no_progress=0.3))
    workers = Loop([Broker(config, own), EnvServer(config, own), actor])
    with attended(learner) as end, ThreadPoolExecutor(1) as pool:
        worker = pool.submit(workers.run)
        try:
            wait_until(gate.began.is_set)
            until = learner.clock() + 2.0
            # on a busy machine its stream may just be opened again: idle is what it becomes, at whatever moment
            wait_until(lambda: worker.done() or (learner.clock() > until and actor.idle()))
            assert not worker.done(), worker.exception()
            assert actor.report()["trouble"] == "", "it is not the actor that stands still"
            gate.open()
            wait_until(lambda: worker.done() or gate.updates > 3)
            end()
        finally:
            gate.open()
            workers.stop()
        worker.result(30)


def test_a_computation_is_alive_for_as_long_as_it_uses_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MIN_BUSY_CORES", 0.001)
    clock = Clock()
    learner = learner_for(run_config(tmp_path), clock=clock)
    learner.state, learner.report = "ready", dict  # type: ignore[method-assign, assignment]
    monkeypatch.setattr(learner, "idle", lambda: False)
    with HealthServer(learner, HealthConfig()) as health, learner.computing:
        for _ in range(3):
            clock.skipped += 40.0
            began = time.process_time()
            while time.process_time() - began < 0.1:
                pass
            learner.attend()
            assert health.page()["live"]
            assert not health.page()["stalled"]
        for _ in range(2):
            clock.skipped += 40.0
            learner.attend()
        assert not health.page()["live"], "it may hang"


def test_the_four_services_train_in_one_thread(tmp_path: Path) -> None:
    config = run_config(tmp_path, env="CartPole-v1", total_steps=2000, batch_size=8, when_done="exit")
    roles = {role: getattr(config, role) for role in ("learner", "broker", "envserver")}
    inside = {role: own.model_copy(update={"endpoint": f"inproc://{role}"}) for role, own in roles.items()}
    config = config.model_copy(update=inside)
    services = [kind(config, Instance(index=0)) for kind in (Learner, Broker, EnvServer, Actor)]
    Loop(services).run()
    learner, broker, env_server, actor = services
    assert learner.report()["agent_steps"] == 2000
    assert learner.report()["updates"] == 50
    assert min(broker.report()["rows"], env_server.report()["agent_steps"], actor.report()["agent_steps"]) > 1800
    assert [service.page["refused_by_reason"] for service in services] == [{}] * 4
    assert all(0 < service.page["cpu_s"] < 60 for service in services)
    assert all(service.page["busy_fraction"] < 1 for service in services), "while one has its turn the others wait"


def test_services_that_see_the_run_end_a_while_after_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "LOOK_S", 0.0)
    monkeypatch.setattr(loop, "LINGER_S", 0.2)
    looks = []

    def over() -> bool:
        looks.append(time.monotonic())
        return len(looks) > 2

    Loop([Trivial(run_config(tmp_path), Instance(index=0))], over=over).run()
    assert looks[-1] - looks[1] >= 0.2


def test_a_run_is_over_once_its_last_policy_is_evaluated(tmp_path: Path) -> None:
    config = run_config(tmp_path, total_steps=40, evaluate={"times": 1}, when_done="evaluated")
    waiting = config.folder / "evaluate" / "40.pt"
    waiting.parent.mkdir(parents=True)
    queue = EvaluationQueue(config.folder, 60.0)
    assert not entry.is_over(config, queue), "there is nothing yet"
    (config.folder / "metrics.csv").write_text("agent_steps\n40\n")
    waiting.touch()
    assert not entry.is_over(config, queue)
    waiting.unlink()
    assert entry.is_over(config, queue)
    more = config.model_copy(update={"total_steps": 80})
    assert not entry.is_over(more, queue)
    (config.folder / "reached").touch()
    assert entry.is_over(more, queue)
