"""Services that share a process: one loop, one context, planes over inproc."""

import time
from pathlib import Path

import pytest

from tests.build.learners import run_config
from zerobeast.common.config.process import Instance
from zerobeast.common.files.evaluation_queue import EvaluationQueue
from zerobeast.common.service import entry, loop
from zerobeast.common.service.base import Service
from zerobeast.common.service.loop import Loop
from zerobeast.services.actor.service import Actor
from zerobeast.services.broker.service import Broker
from zerobeast.services.envserver.service import EnvServer
from zerobeast.services.learner.service import Learner


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


class Idle(Service):
    """Does nothing until it is stopped."""

    role = "idle"

    def open(self) -> None:
        pass

    def take(self) -> None:
        pass


def test_services_that_see_the_run_end_a_while_after_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "LOOK_S", 0.0)
    monkeypatch.setattr(loop, "LINGER_S", 0.2)
    looks = []

    def over() -> bool:
        looks.append(time.monotonic())
        return len(looks) > 2

    Loop([Idle()], over=over).run()
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
