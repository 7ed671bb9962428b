"""The broker of `beast bench broker`: the real service, with a policy that answers without computing anything."""

from __future__ import annotations

import threading
import time
from multiprocessing.connection import Connection
from unittest.mock import patch

import torch
from torch import Tensor

from zerobeast.common.algos.impala.algorithm import Impala
from zerobeast.common.algos.protocol import Act
from zerobeast.common.config.process import Instance
from zerobeast.common.config.tree import RunConfig
from zerobeast.common.nets.agent import AgentNet, StepInput
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.services.broker.service import Broker
from zerobeast.tools.bench.processes import serve


class ConstantImpala(Impala):
    """IMPALA with its network, whose weights a broker takes, and with the same answer to every observation.

    Args:
      config: of the run.
      env: as actors describe it.
    """

    def __init__(self, config: RunConfig, env: EnvSpec) -> None:
        super().__init__(config, env)
        self.rows = 0  #: answered so far
        most = config.broker.max_batch_rows
        self._answer = Act(
            action=torch.zeros(most, dtype=torch.int64),
            logits=torch.zeros(most, self.policy.n_logits),
            value=torch.zeros(most),
        )

    def act(
        self, net: AgentNet, inputs: StepInput, core: Tensor, *, generator: torch.Generator, greedy: bool
    ) -> tuple[Act, Tensor]:
        """Answer B environments."""
        del net, generator, greedy
        n = inputs.first.shape[1]
        self.rows += n
        return Act(*(field[:n] for field in self._answer)), core


def serve_broker(pipe: Connection, config: RunConfig) -> None:
    """Serve until the pipe ends; answer with [seconds, agent steps so far, CPU seconds of the broker's loop]."""
    made: list[ConstantImpala] = []
    loop = time.pthread_getcpuclockid(threading.get_ident())

    def make(run: RunConfig, env: EnvSpec) -> ConstantImpala:
        made.append(ConstantImpala(run, env))
        return made[-1]

    def figures() -> list[float]:
        return [time.monotonic(), sum(algorithm.rows for algorithm in made), time.clock_gettime(loop)]

    with patch("zerobeast.services.broker.sessions.make_algorithm", make):
        serve(pipe, Broker(config, Instance()), figures)
