"""A training run without sockets or files, on an intake of lists."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from zerobeast.common.health.hops import Hops
from zerobeast.common.service.computing import Computing
from zerobeast.services.learner.acting import Publishing
from zerobeast.services.learner.intake import Intake
from zerobeast.services.learner.meters import Meters
from zerobeast.services.learner.run import TrainingRun
from zerobeast.services.learner.together import Act, Alone
from zerobeast.services.learner.update import Trainer


def training_run(trainer: Trainer, intake: Intake, clock: Callable[[], float]) -> TrainingRun:
    """A training run that publishes its weights nowhere."""
    nowhere: Any = SimpleNamespace(publish=lambda _header, _snapshot: None, tell=lambda _news: None)
    hops, computing = Hops("learner", 0.0), Computing(clock)
    service: Any = SimpleNamespace(clock=clock, hops=hops, computing=computing, started_at=0.0, page={})
    publishing = Publishing(nowhere, None, intake.epoch, intake.acting)
    return TrainingRun(trainer, intake, service, publishing, Meters(["Test-v0"]))


def learn(training: TrainingRun) -> bool:
    """Take the step or the batch that can be taken now; False: there is neither."""
    agreed = Alone().agree(training.vote(Alone()), 0.0)
    if agreed is None or agreed.act is Act.END:
        return False
    training.act(agreed, 0.0)
    return True
