"""Inference plane: agent steps per second that a broker can serve with a policy that costs nothing.

The broker is the real service in its own process, with sockets, sessions, batches, frame stacks and weights. Only
`Algorithm.act` is replaced, by constant answers. Two client processes, each with two env groups of 32 environments,
send requests in lock step. The rate counts the broker's answers; the CPU time is that of its loop, without libzmq's
thread.
"""

import threading
import time
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

from zerobeast.common.config.process import Instance
from zerobeast.common.errors import BeastError
from zerobeast.common.service.loop import Loop
from zerobeast.common.settings import RunConfig
from zerobeast.common.transport import WeightsPublisher
from zerobeast.common.wire import ArraySpace, EnvSpec
from zerobeast.rl.algos.impala.algorithm import Impala
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.nets import StepInput
from zerobeast.rl.nets.weights import flatten, layout_id
from zerobeast.rl.ops.tree import tree_map
from zerobeast.rl.protocol import Act, Sampling
from zerobeast.services.broker.service import Broker
from zerobeast_tools.bench.broker_client import ask
from zerobeast_tools.bench.figures import STEPS_S, Figure, Goal, figure
from zerobeast_tools.bench.options import run_plane
from zerobeast_tools.bench.processes import Process, plane_processes
from zerobeast_tools.bench.weights import WeightsSource

CLIENTS, GROUPS, NUM_ENVS = 2, 2, 32
FRAME_STACKS = (4, 1)
WARMUP = 0.25  #: fraction of the measured time
RATE = Goal(">=", 100_000)  #: agent steps a second on 2 cores, clients included
CPU = Goal("<=", 2.0)  #: microseconds of the loop per agent step


def main(argv: list[str]) -> int:
    """`beast bench broker`."""
    return run_plane("broker", __doc__, argv, measure)


def measure(seconds: float) -> list[Figure]:
    """Rate and CPU time with each depth of the frame stack, `seconds` for each depth."""
    figures = []
    for depth in FRAME_STACKS:
        rate, cpu_us = _measure(depth, seconds)
        figures.append(figure(f"broker, frame_stack {depth}: rate", rate, STEPS_S, RATE))
        figures.append(figure(f"broker, frame_stack {depth}: CPU of its loop", cpu_us, "us/agent step", CPU))
    return figures


def _measure(frame_stack: int, seconds: float) -> tuple[float, float]:
    """(agent steps a second, microseconds of the broker's loop per agent step)."""
    env = EnvSpec(
        "PongNoFrameskip-v4", ArraySpace.box((84, 84), "|u1"), ArraySpace.discrete(6), frame_stack, frame_skip=4
    )
    with plane_processes() as (folder, context, processes):
        config = _config(folder)
        with closing(WeightsPublisher(context, config.learner.endpoint)) as publisher:
            net = Impala(config, env).network()
            learner = WeightsSource(publisher, flatten(net), layout_id(net))
            learner.publish()
            broker = processes.start(serve_broker, config)
            clients = [processes.start(ask, config.broker.endpoint, env, GROUPS, NUM_ENVS) for _ in range(CLIENTS)]
            processes.until_heard(clients, meanwhile=learner.welcome)
            time.sleep(WARMUP * seconds)
            before = _mark(broker)
            time.sleep(seconds)
            after = _mark(broker)
    elapsed_s, steps, cpu_s = (new - old for new, old in zip(after, before, strict=True))
    if not steps:
        raise BeastError(f"the broker has answered nothing for {elapsed_s:.3g} s: measure longer")
    return steps / elapsed_s, 1e6 * cpu_s / steps


def _config(folder: Path) -> RunConfig:
    return RunConfig.model_validate(
        {
            "actor": {"env_groups": GROUPS, "envs_per_group": NUM_ENVS},
            "broker": {"endpoint": f"ipc://{folder}/broker", "device": "cpu", "precision": "float32"},
            "learner": {"endpoint": f"ipc://{folder}/learner"},
        }
    )


def _mark(broker: Process) -> list[float]:
    """Ask `serve_broker` for its counters."""
    broker.pipe.send("mark")
    return list(broker.hear())


class ConstantImpala(Impala):
    """IMPALA with its network, so that a broker accepts the weights, but the same answer to every observation.

    Args:
      config: of the run.
      env: as actors describe it.
    """

    rows = 0  #: answered so far by all instances in this process

    def __init__(self, config: RunConfig, env: EnvSpec) -> None:
        super().__init__(config, env)
        most = config.broker.max_batch_rows
        self._answer = Act(
            action=torch.zeros(most, dtype=torch.int64),
            extras={name: torch.zeros(most, *shape) for name, _, shape in self.policy.extras},
        )

    def act(self, net: PolicyAndValue, inputs: StepInput, core: Tensor, sampling: Sampling) -> tuple[Act, Tensor]:
        """Answer B environments."""
        del net, sampling
        n = inputs.first.shape[1]
        ConstantImpala.rows += n
        act: Act = tree_map(lambda field: field[:n], self._answer)
        return act, core


def serve_broker(pipe: Connection, config: RunConfig) -> None:
    """Serve for ever; answer each message on the pipe with [seconds, agent steps so far, CPU seconds of the loop]."""
    loop = time.pthread_getcpuclockid(threading.get_ident())

    def answer() -> None:
        while pipe.recv():
            pipe.send([time.monotonic(), ConstantImpala.rows, time.clock_gettime(loop)])

    threading.Thread(target=answer, daemon=True).start()
    with patch("zerobeast.services.broker.sessions.make_algorithm", ConstantImpala):
        Loop([Broker(config, Instance())]).run()
