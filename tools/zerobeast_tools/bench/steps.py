"""Steps plane: round trip to an env-server in lock step, with environments that cost nothing.

The env-server is the real service in its own process; the client is `zerobeast.clients.env_client`. Only the
environments are replaced, by constant ones. The baseline sends the same number of bytes back and forth between two C
processes.
"""

import shutil
import subprocess
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from zerobeast.clients.env_client import EnvClient
from zerobeast.common.config.process import Instance
from zerobeast.common.service.loop import Loop
from zerobeast.common.settings import RunConfig
from zerobeast.common.transport import random_id
from zerobeast.common.wire import ArraySpace, EnvSpec, action_record, step_record
from zerobeast.common.wire.messages import TOPIC_BYTES, Header, Kind, pack_header
from zerobeast.services.envserver.service import EnvServer
from zerobeast_tools.bench.constant_envserver import constant
from zerobeast_tools.bench.figures import Figure, Goal, figure
from zerobeast_tools.bench.options import run_plane
from zerobeast_tools.bench.processes import START_LIMIT_S, plane_processes

NUM_ENVS = 4
ENV = EnvSpec("Constant-v0", ArraySpace.box((84, 84), "|u1"), ArraySpace.discrete(6))
WARMUP_STEPS = 200
PINGPONG = Path(__file__).with_name("pingpong.c")
NO_COMPILER = "There is no C compiler (cc) here, so the round trip has no yardstick."
MARGIN_S = 60.0  #: beyond the measured time, before the ping-pong counts as stuck
LATENCY = Goal("<=", 6, of_ratio=True)


def main(argv: list[str]) -> int:
    """`beast bench steps`."""
    return run_plane("steps", __doc__, argv, measure, otherwise=NO_COMPILER)


def measure(seconds: float) -> list[Figure]:
    """The median round trip, and the yardstick's beside it, `seconds` for each."""
    request_bytes, reply_bytes = _message_bytes()
    yardstick = pingpong_us(request_bytes, reply_bytes, seconds)
    what = f"steps, {reply_bytes / 1000:.0f} kB over ipc: median round trip"
    return [figure(what, _round_trip_us(seconds), "us", LATENCY, yardstick)]


def serve_steps(_pipe: Connection, config: RunConfig) -> None:
    """Serve constant environments for ever."""
    with constant(ENV):
        Loop([EnvServer(config, Instance())]).run()


def _round_trip_us(seconds: float) -> float:
    actions = np.zeros(NUM_ENVS, np.int64)
    with plane_processes() as (folder, context, processes):
        endpoint = f"ipc://{folder}/env"
        processes.start(serve_steps, RunConfig.model_validate({"envserver": {"endpoint": endpoint}}))
        with EnvClient(context, endpoint, {"id": ENV.env_id}, NUM_ENVS, seed=0, timeout_s=START_LIMIT_S) as envs:
            envs.reset()
            for _ in range(WARMUP_STEPS):
                envs.step(actions)
            times = [time.perf_counter()]
            while times[-1] < times[0] + seconds:
                envs.step(actions)
                times.append(time.perf_counter())
    return 1e6 * float(np.median(np.diff(times)))


def _message_bytes() -> tuple[int, int]:
    """Sizes of STEP and OBS, headers included."""
    ids = (random_id(), 0, random_id(), 1000)
    step = len(pack_header(Header(Kind.STEP, *ids))) + NUM_ENVS * action_record(ENV.action).row_bytes
    obs = TOPIC_BYTES + len(pack_header(Header(Kind.OBS, *ids, ([],)))) + NUM_ENVS * step_record(ENV).row_bytes
    return step, obs


def pingpong_us(request_bytes: int, reply_bytes: int, seconds: float) -> float | None:
    """Median round trip of two C processes over a unix socket, in microseconds; None without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory(prefix="pingpong-") as folder:
        program = f"{folder}/pingpong"
        subprocess.run([compiler, "-O2", "-o", program, str(PINGPONG)], check=True)
        argv = [program, str(request_bytes), str(reply_bytes), str(seconds)]
        return float(subprocess.check_output(argv, timeout=seconds + MARGIN_S))
