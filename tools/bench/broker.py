"""The inference plane: how many agent steps a second a broker carries where the policy costs nothing.

The broker is the real service in a process of its own: sockets, sessions, batches, frame stacks, weights. Only
`Algorithm.act` is replaced, by constant answers. Two processes with two env groups of 32 environments each ask in
lock step. The rate is that of the broker's answers; the CPU time is that of its loop, without libzmq's thread.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from zerobeast.common.config.tree import RunConfig
from zerobeast.common.errors import BeastError
from zerobeast.common.transport import Context, WeightsPublisher, checksum, chunks, random_id
from zerobeast.common.wire.messages import Header, Kind
from zerobeast.common.wire.specs import ActionSpec, EnvSpec
from zerobeast.launcher.private_folder import private_folder
from zerobeast.tools.bench.broker_client import ask
from zerobeast.tools.bench.figures import Figure, Goal, figure
from zerobeast.tools.bench.options import emit_figures, parse_plane
from zerobeast.tools.bench.processes import Process, Processes
from zerobeast.tools.bench.weights import welcome

CLIENTS, GROUPS, NUM_ENVS = 2, 2, 32
FRAME_STACKS = (4, 1)
WARMUP = 0.25  #: of the measured time
RATE = Goal(">=", 100_000)  #: agent steps a second on 2 cores, clients included
CPU = Goal("<=", 2.0)  #: microseconds of the loop per agent step


def main(argv: list[str]) -> int:
    """`beast bench broker`."""
    options = parse_plane("broker", argv)
    emit_figures(measure(options.seconds), options.json)
    return 0


def measure(seconds: float) -> list[Figure]:
    """Rate and CPU time with each depth of the frame stack, `seconds` for each depth."""
    figures = []
    for depth in FRAME_STACKS:
        rate, cpu_us = _measure(depth, seconds)
        figures.append(figure(f"broker, frame_stack {depth}: rate", rate, "agent steps/s", RATE))
        figures.append(figure(f"broker, frame_stack {depth}: CPU of its loop", cpu_us, "us/agent step", CPU))
    return figures


def _measure(frame_stack: int, seconds: float) -> tuple[float, float]:
    """(agent steps a second, microseconds of the broker's loop per agent step)."""
    from zerobeast.tools.bench.broker_process import serve_broker

    env = EnvSpec("PongNoFrameskip-v4", (84, 84), "|u1", ActionSpec.discrete(6), frame_stack, frame_skip=4)
    with ExitStack() as resources:
        config = _config(resources.enter_context(private_folder()))
        context = Context()
        resources.callback(context.term)
        publisher = WeightsPublisher(context, config.learner.endpoint)
        resources.callback(publisher.close)
        _publish(publisher, config, env)
        processes = resources.enter_context(Processes())
        broker = processes.start(serve_broker, config)
        clients = [processes.start(ask, config.broker.endpoint, env, GROUPS, NUM_ENVS) for _ in range(CLIENTS)]
        processes.until_heard(clients, meanwhile=lambda: welcome(publisher))
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


def _publish(publisher: WeightsPublisher, config: RunConfig, env: EnvSpec) -> None:
    """Offer the weights of a new network, as a learner does."""
    from zerobeast.common.algos.factory import make_algorithm
    from zerobeast.common.nets.weights import flatten, layout_id

    net = make_algorithm(config, env).network()
    flat = flatten(net)
    body = (0, layout_id(net), flat.nbytes, checksum(flat), len(chunks(flat)))
    publisher.publish(Header(Kind.WEIGHTS, 0, epoch=random_id(), body=body), flat)


def _mark(broker: Process) -> list[float]:
    """What `serve_broker` answers."""
    broker.tell("mark")
    marks: list[float] = broker.hear()
    return marks
