"""Rollouts of no environment, the actor's end of the rollout plane, and checkpoints, for tests of the learner."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tests.helpers import poll, wait_until
from zerobeast.common.config.process import Instance
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.transport import ClientPort, Context, WeightsSubscriber, random_id
from zerobeast.common.wire import ArraySpace, EnvSpec, PolicySpec, rollout_record
from zerobeast.common.wire.messages import Header, Kind, Plane
from zerobeast.common.wire.stream import Stream
from zerobeast.rl.algos.policy_gradient.actor_critic import logits_and_value
from zerobeast.rl.data.batch import Batch
from zerobeast.rl.learning.one_batch import OneBatch
from zerobeast.rl.protocol import Learned
from zerobeast.services.learner.checkpoint import Checkpoints, load_checkpoint
from zerobeast.services.learner.intake import Intake
from zerobeast.services.learner.queue import RolloutQueue
from zerobeast.services.learner.service import Learner
from zerobeast.services.learner.update import Trainer

ENV = EnvSpec("Test-v0", ArraySpace.box((4,)), ArraySpace.discrete(2), frame_skip=4)
POLICY = PolicySpec(logits_and_value(2), 0)
T, B = 5, 4


def run_config(
    root: Path,
    *,
    env: str = "Test-v0",
    total_steps: int = 160,
    impala: dict[str, Any] | None = None,
    sync: str = "always",
    evaluate: dict[str, Any] | None = None,
    **learner: Any,
) -> RunConfig:
    """A small run: T = 5, B = 4, so that 160 steps are 8 updates; further keywords are settings of the learner."""
    return RunConfig.model_validate(
        {
            "name": "run",
            "root": str(root),
            "total_steps": total_steps,
            "env": {"id": env},
            "net": {"torso": "mlp", "hidden_size": 16},
            "actor": {"envs_per_group": 4},
            "impala": impala or {},
            "sync": {"rule": sync},
            "evaluate": evaluate or {},
            "learner": {
                "unroll_length": T,
                "batch_size": B,
                "device": "cpu",
                "precision": "float32",
                "log_every_s": 1000.0,
                "checkpoint_every_s": 1000.0,
                **learner,
            },
        }
    )


def rollout_rows(n: int, seed: int = 0, policy: PolicySpec = POLICY, seams: bool = True) -> NDArray[np.void]:
    """n rows of random but valid values; with `seams`, some steps begin an episode."""
    random = np.random.default_rng(seed)
    rows: NDArray[np.void] = np.zeros(n, rollout_record(ENV, policy, T).dtype)
    rows["obs"] = random.random(rows["obs"].shape)
    rows["reward"] = random.normal(size=rows["reward"].shape)
    rows["last_action"] = random.integers(0, 2, rows["last_action"].shape)
    rows["logits"] = random.normal(size=rows["logits"].shape)
    rows["value"] = random.normal(size=rows["value"].shape)
    if seams:
        rows["terminated"][:, 1:-1] = random.random((n, T - 1)) < 0.3
        rows["first"][:, 1:] = rows["terminated"][:, :-1]
        rows["reward"][rows["first"]] = 0.0
    return rows


class FakeActor:
    """Sends rollouts and records the replies."""

    def __init__(self, context: Context, endpoint: str, slot: int = 0, **terms: Any) -> None:
        self.port = ClientPort(context, Plane.ROLLOUTS, endpoint, random_id())
        asked = {"env": ENV.to_wire(), "policy": POLICY.to_wire(), "unroll_length": T, "num_envs": 4, **terms}
        self.stream = Stream(self.port.sender, slot, asked, "learner")
        self.replies: list[Header] = []

    @property
    def acked(self) -> list[int]:
        """consumed_seq of every ACK so far."""
        return [reply.body[0] for reply in self.replies if reply.kind is Kind.ACK]

    def turn(self, now: float) -> None:
        """Send what is due and take all replies."""
        if not self.stream.open and (work := self.stream.due(now)):
            self.port.send(work[0])
        while message := self.port.receive():
            self.replies.append(message.header)
            if message.header.kind in (Kind.WELCOME, Kind.ERROR):
                self.stream.accept(message.header, now)

    def push(
        self, seq: int, rows: NDArray[Any], episodes: list[Any] | None = None, n: int | None = None, acting: int = 0
    ) -> None:
        """Send a rollout message regardless of the window."""
        body = (len(rows) if n is None else n, episodes or [], acting)
        header = Header(Kind.ROLLOUT, self.port.sender, self.stream.slot, self.stream.epoch, seq, body)
        assert self.port.send(header, rows.view(np.uint8)), "the learner is gone"

    def close(self) -> None:
        self.port.close()


class Clock:
    """Monotonic seconds that can be skipped."""

    skipped = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.skipped


def learner_for(config: RunConfig, **injected: Any) -> Learner:
    return Learner(config, Instance(), **injected)


@contextmanager
def open_learner(config: RunConfig, **injected: Any) -> Iterator[Learner]:
    learner = learner_for(config, **injected)
    try:
        learner.open()
        learner.state = "ready"
        yield learner
    finally:
        learner.close()


def drive(learner: Learner, actors: list[FakeActor], until: Callable[[], Any]) -> None:
    """Run learner and actors in one thread until `until` is true; a process's first network takes long to build."""

    def turn() -> Any:
        for actor in actors:
            actor.turn(learner.clock())
        if not learner.stopping:
            poll(learner, 0.005)
        return until()

    wait_until(turn, 200.0)


def greet(learner: Learner, *actors: FakeActor) -> None:
    """Run until all actors have been welcomed."""
    drive(learner, list(actors), lambda: all(actor.stream.open for actor in actors))


@dataclass(frozen=True)
class OpenRun:
    """A listening learner and actors driven by hand, all of which run in the test's own thread."""

    learner: Learner
    actor: Callable[..., FakeActor]  #: makes an actor with these terms that has sent nothing yet

    @property
    def intake(self) -> Intake:
        assert self.learner.training is not None, "no client was welcomed yet"
        return self.learner.training.intake

    @property
    def queue(self) -> RolloutQueue:
        return self.intake.queue

    @property
    def trainer(self) -> Trainer:
        assert self.learner.training is not None, "no client was welcomed yet"
        return self.learner.training.trainer

    @property
    def page(self) -> dict[str, Any]:
        return self.learner.report()

    def welcomed(self, **terms: Any) -> FakeActor:
        actor = self.actor(**terms)
        self.greet(actor)
        return actor

    def crowd(self, count: int) -> list[FakeActor]:
        """Actors that are welcomed together."""
        actors = [self.actor() for _ in range(count)]
        self.greet(*actors)
        return actors

    def greet(self, *actors: FakeActor) -> None:
        greet(self.learner, *actors)

    def greet_again(self, actor: FakeActor) -> None:
        """Run until an actor that was welcomed before is welcomed again."""
        actor.stream.greet_again(self.learner.clock())
        self.greet(actor)

    def drive(self, actors: list[FakeActor], until: Callable[[], Any]) -> None:
        drive(self.learner, actors, until)


Opener = Callable[..., OpenRun]  #: type of the fixture `open_run`


def next_weights(learner: Learner, subscriber: WeightsSubscriber) -> tuple[Header, np.ndarray[Any, np.dtype[np.uint8]]]:
    found = []

    def turn() -> bool:
        poll(learner, 0.005)
        if message := subscriber.receive():
            found.append((message.header, np.frombuffer(b"".join(message.frames()), np.uint8)))
        return bool(found)

    wait_until(turn)
    return found[-1]


def feed(learner: Learner, actor: FakeActor, seqs: range) -> None:
    """Push one batch per number, with an episode that returns this number, and run until all are learned."""
    greet(learner, actor)
    for seq in seqs:
        actor.push(seq, rollout_rows(4, seq), [[float(seq), seq]])
    drive(learner, [actor], lambda: seqs[-1] in actor.acked)


def learn_batches(config: RunConfig, actor: FakeActor, seqs: range) -> None:
    """Open a learner, have it learn these batches, and end it."""
    with open_learner(config) as learner:
        feed(learner, actor, seqs)
        learner.drain()


class Scripted(OneBatch):
    """Learning that gives scripted answers and records the agent steps of each call."""

    def __init__(self, *answers: Learned) -> None:
        self.answers = list(answers)
        self.asked: list[int] = []

    def update(self, batch: Batch, agent_steps: int) -> Learned:
        self.asked.append(agent_steps)
        return self.answers.pop(0)


def learn(trainer: Trainer, rows: NDArray[Any]) -> Learned:
    """Add one batch and take one step."""
    trainer.add(rows)
    return trainer.step()


def answer(steps: int, *, skipped: int = 0, changed: bool = False) -> Learned:
    return Learned(steps, skipped, changed, 0.0, 0.0, 0.0, {})


CPU = torch.device("cpu")


def save_checkpoint(folder: Path, trainer: Trainer, **changes: Any) -> Path:
    checkpoints = Checkpoints(folder)
    checkpoints.save({**trainer.state(), "statistics": {}, "rollouts": {}, **changes})
    return checkpoints.path


def train_on_seeds(trainer: Trainer, seeds: range) -> Trainer:
    for seed in seeds:
        learn(trainer, rollout_rows(B, seed, policy=trainer.policy))
    return trainer


def state_in(path: Path) -> dict[str, Any]:
    state = load_checkpoint(path)
    assert state is not None
    return state
