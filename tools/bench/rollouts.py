"""The rollouts plane over tcp: bytes a second from an actor's outboxes to a learner that uses them at once.

Real on the learner's side are port, intake and queue, on the actor's the outboxes of its env groups and their port,
with credit and acknowledgements; there is no update and there are no environments. The yardstick is a bare tcp stream
in writes of the same size.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from secrets import randbelow

import numpy as np

from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.runtime.memory import keep_freed_memory
from zerobeast.common.transport import Context, Poller, ServerPort, random_id
from zerobeast.common.wire.messages import Plane
from zerobeast.common.wire.records import rollout_record
from zerobeast.common.wire.specs import ActionSpec, EnvSpec, PolicySpec
from zerobeast.services.learner.admission import Terms
from zerobeast.services.learner.intake import Intake
from zerobeast.services.learner.ledger import SavedLedger
from zerobeast.services.learner.queue import RolloutQueue
from zerobeast.tools.bench.figures import Figure, Goal, figure
from zerobeast.tools.bench.options import emit_figures, parse_plane
from zerobeast.tools.bench.processes import Processes
from zerobeast.tools.bench.rollouts_sender import send
from zerobeast.tools.bench.stream import stream_bytes_per_s

ENV = EnvSpec("PongNoFrameskip-v4", (84, 84), "|u1", ActionSpec.discrete(6))
TERMS = Terms(ENV, PolicySpec(n_logits=6, core_size=0), unroll_length=20, num_envs=16)
GROUPS = 2  #: env groups of an actor, each with a window of its own
WINDOWS = (1, 2)  #: rollouts under way per group: the default setting, and one more
STREAM_MESSAGES = 3  #: in the buffer of the stream that is the limit
WARMUP = 0.25  #: of the measured time
BANDWIDTH = Goal(">=", 0.35, of_ratio=True)
PORTS, ATTEMPTS = (20_000, 32_000), 20


def main(argv: list[str]) -> int:
    """`beast bench rollouts`."""
    options = parse_plane("rollouts", argv)
    emit_figures(measure(options.seconds), options.json)
    return 0


def measure(seconds: float) -> list[Figure]:
    """Bandwidth with each window beside that of the stream, `seconds` for each."""
    keep_freed_memory()
    assert TERMS.policy is not None, "it stands above"
    size = TERMS.num_envs * rollout_record(ENV, TERMS.policy, TERMS.unroll_length).row_bytes
    stream = stream_bytes_per_s(size, STREAM_MESSAGES * size, seconds)
    figures = []
    for window in WINDOWS:
        rate = size * _messages_per_s(window, seconds)
        what = f"rollouts, {size / 1e6:.1f} MB over tcp, window {window}: bandwidth"
        figures.append(figure(what, rate / 1e6, "MB/s", BANDWIDTH, stream / 1e6))
    return figures


def _messages_per_s(window: int, seconds: float) -> float:
    with ExitStack() as resources:
        context = Context()
        resources.callback(context.term)
        port, endpoint = _bound(context)
        resources.callback(port.close)
        processes = resources.enter_context(Processes())
        consumer = Consumer(port, window)
        sender = processes.start(send, endpoint, TERMS, GROUPS)
        processes.until_heard([sender], meanwhile=lambda: consumer.turn(0.05))
        _consume(consumer, WARMUP * seconds)
        consumed, elapsed_s = _consume(consumer, seconds)
    if not consumed:
        raise BeastError(f"no rollout has arrived in {elapsed_s:.3g} s: measure longer")
    return consumed / elapsed_s


class Consumer:
    """A learner that trains in no time.

    Args:
      port: to receive from.
      window: messages that a group may have under way.
    """

    def __init__(self, port: ServerPort, window: int) -> None:
        assert TERMS.policy is not None, "it stands above"
        record = rollout_record(ENV, TERMS.policy, TERMS.unroll_length)
        # a batch is a message, so that each is used up as soon as it is there
        self._queue = RolloutQueue(partial(np.empty, dtype=record.dtype), TERMS.num_envs)
        self._intake = Intake(port, random_id(), window, lambda _theirs: (TERMS, self._queue), SavedLedger())
        self._poller = Poller([port])

    def turn(self, timeout_s: float) -> int:
        """Wait, take what came, and acknowledge it; returns how many messages."""
        consumed = 0
        self._poller.wait(timeout_s)
        self._intake.receive(time.monotonic())
        while self._queue.take() is not None:
            done = self._queue.release()
            self._intake.use(done, TERMS.num_envs, learned=True)
            consumed += len(done)
        return consumed


def _consume(consumer: Consumer, seconds: float) -> tuple[int, float]:
    """(messages, seconds) of a while."""
    consumed, start = 0, time.perf_counter()
    while (elapsed_s := time.perf_counter() - start) < seconds:
        consumed += consumer.turn(seconds - elapsed_s)
    return consumed, elapsed_s


def _bound(context: Context) -> tuple[ServerPort, str]:
    """A port on loopback, at an unused endpoint."""
    for attempt in range(ATTEMPTS):
        endpoint = f"tcp://127.0.0.1:{PORTS[0] + randbelow(PORTS[1] - PORTS[0])}"
        try:
            return ServerPort(context, Plane.ROLLOUTS, endpoint), endpoint
        except ConfigError:
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")
