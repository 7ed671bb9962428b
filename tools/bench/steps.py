"""The steps plane: a round trip to an env-server in lock step, where the environments cost nothing.

The env-server is the real service in a process of its own, the client is `zerobeast.env_client`. Only the environments
are replaced, by ones that never change. The yardstick moves as many bytes there and back between two C processes.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from unittest.mock import patch

import numpy as np

from zerobeast.common.config.process import Instance
from zerobeast.common.config.tree import RunConfig
from zerobeast.common.runtime.memory import keep_freed_memory
from zerobeast.common.settings.run import EnvConfig, EnvServerConfig
from zerobeast.common.transport import Context, random_id
from zerobeast.common.wire.messages import TOPIC_BYTES, Header, Kind, pack_header
from zerobeast.common.wire.records import action_record, step_record
from zerobeast.common.wire.specs import ActionSpec, EnvSpec
from zerobeast.env_client import EnvClient
from zerobeast.launcher.private_folder import private_folder
from zerobeast.services.envserver.service import EnvServer
from zerobeast.services.envserver.vector import VectorEnv
from zerobeast.tools.bench.constant_envserver import constant
from zerobeast.tools.bench.figures import Figure, Goal, figure
from zerobeast.tools.bench.options import emit_figures, parse_plane
from zerobeast.tools.bench.pingpong import NO_COMPILER, round_trip_us
from zerobeast.tools.bench.processes import START_LIMIT_S, Processes, serve

NUM_ENVS = 4
ENV = EnvSpec("Constant-v0", (84, 84), "|u1", ActionSpec.discrete(6))
WARMUP_STEPS = 200
LATENCY = Goal("<=", 6, of_ratio=True)


def main(argv: list[str]) -> int:
    """`beast bench steps`."""
    options = parse_plane("steps", argv)
    figures = measure(options.seconds)
    emit_figures(figures, options.json, note=NO_COMPILER if figures[0].yardstick is None else "")
    return 0


def measure(seconds: float) -> list[Figure]:
    """The median round trip, and the yardstick's beside it, `seconds` for each."""
    keep_freed_memory()
    request_bytes, reply_bytes = _message_bytes()
    yardstick = round_trip_us(request_bytes, reply_bytes, seconds)
    what = f"steps, {reply_bytes / 1000:.0f} kB over ipc: median round trip"
    return [figure(what, _round_trip_us(seconds), "us", LATENCY, yardstick)]


def serve_steps(pipe: Connection, config: RunConfig) -> None:
    """Serve constant environments until the pipe ends."""

    def make(_config: EnvConfig, num_envs: int, _seed: int, _server: EnvServerConfig) -> VectorEnv:
        return constant(ENV, num_envs)

    with patch("zerobeast.services.envserver.service.make_vector_env", make):
        serve(pipe, EnvServer(config, Instance()))


def _round_trip_us(seconds: float) -> float:
    actions = np.zeros(NUM_ENVS, np.int64)
    trips: list[float] = []
    with ExitStack() as resources:
        endpoint = f"ipc://{resources.enter_context(private_folder())}/env"
        context = Context()
        resources.callback(context.term)
        processes = resources.enter_context(Processes())
        processes.start(serve_steps, RunConfig.model_validate({"envserver": {"endpoint": endpoint}}))
        client = EnvClient(context, endpoint, {"id": ENV.env_id}, NUM_ENVS, seed=0, timeout_s=START_LIMIT_S)
        envs = resources.enter_context(client)
        envs.reset()
        for _ in range(WARMUP_STEPS):
            envs.step(actions)
        before = time.perf_counter()
        end = before + seconds
        while before < end:
            envs.step(actions)
            after = time.perf_counter()
            trips.append(after - before)
            before = after
    return 1e6 * statistics.median(trips)


def _message_bytes() -> tuple[int, int]:
    """Sizes of STEP and OBS, headers included."""
    ids = (random_id(), 0, random_id(), 1000)
    step = len(pack_header(Header(Kind.STEP, *ids))) + NUM_ENVS * action_record(ENV.action).row_bytes
    obs = TOPIC_BYTES + len(pack_header(Header(Kind.OBS, *ids, ([],)))) + NUM_ENVS * step_record(ENV).row_bytes
    return step, obs
