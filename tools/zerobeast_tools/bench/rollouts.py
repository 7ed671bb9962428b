"""Rollouts plane over tcp: bytes per second from an actor's outboxes to a learner that uses them immediately.

The learner's port, intake and queue are real, and so are the actor's port and the outboxes of its env groups, with
credit and acknowledgements. There are no updates and no environments. The baseline is a plain tcp stream with writes of
the same size.
"""

import socket
import time
from contextlib import closing, suppress
from functools import partial
from multiprocessing.connection import Connection

import numpy as np

from zerobeast.common.errors import BeastError
from zerobeast.common.transport import Poller, ServerPort, random_id
from zerobeast.common.wire import ArraySpace, EnvSpec, PolicySpec, rollout_record
from zerobeast.common.wire.messages import Plane
from zerobeast.rl.algos.policy_gradient.actor_critic import logits_and_value
from zerobeast.services.learner.admission import Terms
from zerobeast.services.learner.intake import Intake
from zerobeast.services.learner.ledger import SavedLedger
from zerobeast.services.learner.queue import RolloutQueue
from zerobeast_tools.bench.figures import Figure, Goal, figure, per_second
from zerobeast_tools.bench.options import run_plane
from zerobeast_tools.bench.processes import START_LIMIT_S, Processes, plane_processes
from zerobeast_tools.bench.rollouts_sender import send
from zerobeast_tools.throwaway_run import tcp_endpoints

ENV = EnvSpec("PongNoFrameskip-v4", ArraySpace.box((84, 84), "|u1"), ArraySpace.discrete(6))
POLICY = PolicySpec(logits_and_value(6), core_size=0)
TERMS = Terms(ENV, POLICY, unroll_length=20, num_envs=16)
RECORD = rollout_record(ENV, POLICY, 20)
GROUPS = 2  #: env groups of an actor, each with a window of its own
WINDOWS = (1, 2)  #: rollouts under way per group: the default setting, and one more
STREAM_MESSAGES = 3  #: that fit into the receive buffer of the yardstick
MAX_WAIT_S = 0.05
WARMUP = 0.25  #: fraction of the measured time
BANDWIDTH = Goal(">=", 0.35, of_ratio=True)


def main(argv: list[str]) -> int:
    """`beast bench rollouts`."""
    return run_plane("rollouts", __doc__, argv, measure)


def measure(seconds: float) -> list[Figure]:
    """Bandwidth with each window beside that of the stream, `seconds` for each."""
    size = TERMS.num_envs * RECORD.row_bytes
    yardstick = stream_bytes_per_s(size, STREAM_MESSAGES * size, seconds)
    figures = []
    for window in WINDOWS:
        rate = size * _messages_per_s(window, seconds)
        what = f"rollouts, {size / 1e6:.1f} MB over tcp, window {window}: bandwidth"
        figures.append(figure(what, rate / 1e6, "MB/s", BANDWIDTH, yardstick / 1e6))
    return figures


def _messages_per_s(window: int, seconds: float) -> float:
    with plane_processes() as (_, context, processes):
        endpoint = tcp_endpoints()["learner"]
        with closing(ServerPort(context, Plane.ROLLOUTS, endpoint)) as port:
            consumer = Consumer(port, window)
            sender = processes.start(send, endpoint, TERMS, GROUPS)
            processes.until_heard([sender], meanwhile=consumer.turn)
            per_second(consumer.turn, WARMUP * seconds)
            rate = per_second(consumer.turn, seconds)
    if not rate:
        raise BeastError(f"no rollout has arrived in {seconds:.3g} s: measure longer")
    return rate


class Consumer:
    """A learner that trains in no time.

    Args:
      port: to receive from.
      window: messages that a group may have under way.
    """

    def __init__(self, port: ServerPort, window: int) -> None:
        # a batch is one message, so that each is consumed as soon as it arrives
        self._queue = RolloutQueue(partial(np.empty, dtype=RECORD.dtype), TERMS.num_envs)
        self._intake = Intake(port, random_id(), window, TERMS, self._queue, SavedLedger())
        self._poller = Poller([port])

    def turn(self) -> int:
        """Wait, then consume and acknowledge the messages that arrived; returns how many."""
        consumed = 0
        self._poller.wait(MAX_WAIT_S)
        self._intake.receive(time.monotonic())
        while self._queue.take() is not None:
            consumed += len(self._intake.use(TERMS.num_envs, learned=True))
        return consumed


def stream_bytes_per_s(chunk_bytes: int, ring_bytes: int, seconds: float) -> float:
    """Bytes a second of a tcp stream, sent in chunks of one size and received into a preallocated ring."""
    ring = memoryview(bytearray(ring_bytes))
    with Processes() as processes, socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(START_LIMIT_S)
        processes.start(stream, server.getsockname()[1], chunk_bytes)
        connection, _ = server.accept()
        with connection:
            connection.settimeout(None)
            received = 0

            def receive() -> int:
                nonlocal received
                n = connection.recv_into(ring[received % len(ring) :])
                if not n:
                    raise BeastError("the sender of the stream has ended")
                received += n
                return n

            per_second(receive, WARMUP * seconds)
            return per_second(receive, seconds)


def stream(_pipe: Connection, port: int, chunk_bytes: int) -> None:
    """Send until the receiver has ended."""
    chunk = b"x" * chunk_bytes  # zeros might never be written, and then all map to one page
    with socket.create_connection(("127.0.0.1", port)) as connection, suppress(ConnectionError):
        while True:
            connection.sendall(chunk)
