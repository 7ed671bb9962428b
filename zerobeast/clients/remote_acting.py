"""Workers act and your own script learns: the script takes the learner's place.

with RemoteActing(load(["--env", "CartPole-v1", "--algo", "ppo"], {})) as env:     # workers: see below
    policy = env.policy()                   # a torch module, which the settings name on both sides
    while training:
        batch = env.step(policy)            # B rollouts of T whole steps, tensors [T + 1, B, ...]
        ...                                 # your own loss and optimiser

python -m zerobeast.services.worker --env CartPole-v1 --algo ppo --learner.endpoint tcp://HOST:5560

Workers step the environments and choose the actions (Lafuente-Mercado 2025, arXiv:2507.10990, "DETACH"). They
receive checked weights of a network that they build themselves, according to `sync.rule`; nothing is pickled.
"""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from zerobeast.common.errors import ConfigError, PeerLost
from zerobeast.common.service.computation import Computation
from zerobeast.common.settings import RunConfig
from zerobeast.common.transport import open_context, random_id
from zerobeast.common.wire import EnvSpec, RecordSpec, rollout_record
from zerobeast.rl.data import Batch, Rollouts
from zerobeast.rl.factory import make_algorithm
from zerobeast.rl.nets import Network
from zerobeast.rl.nets.weights import layout_id
from zerobeast.rl.protocol import Algorithm
from zerobeast.services.learner.acting import VersionPublisher
from zerobeast.services.learner.admission import Terms
from zerobeast.services.learner.intake import Intake
from zerobeast.services.learner.ledger import SavedLedger
from zerobeast.services.learner.plane import LearnerSockets
from zerobeast.services.learner.queue import RolloutQueue
from zerobeast.services.learner.startup import start_run, terms_of
from zerobeast.services.learner.update import acting_dtype, divergences

POLL_S = 0.2
CPU = torch.device("cpu")

T = TypeVar("T")


class _Run(NamedTuple):
    """What exists once the first worker has connected."""

    algorithm: Algorithm
    record: RecordSpec  #: of a rollout
    layout: int  #: of the policy's weights
    intake: Intake
    publisher: VersionPublisher


class RemoteActing(AbstractContextManager["RemoteActing"]):
    """Binds `learner.endpoint` and waits for the first worker, whose environments define what is learned.

    Between two calls of `step` a thread answers the workers, however long that takes.

    Args:
      config: settings of the run. Workers need the same `env`, `algo`, `net`, `sync` and `learner.unroll_length`;
        `learner.batch_size` is B.
      timeout_s: how long to wait for the first worker, or for rollouts.

    Attributes:
      episodes: (return, length) of the episodes that ended in the batch before the newest.
      agent_steps: of the policy, as a learner counts them; exploration and random first steps follow them.

    Raises:
      ConfigError: the endpoint cannot be bound.
      PeerLost: no worker connected in time.

    Examples:
      >>> import subprocess, sys
      >>> import zerobeast as zb
      >>> from zerobeast.common.config.load import load_config
      >>> flags = ["--env", "CartPole-v1", "--algo", "ppo", "--learner.endpoint", "tcp://127.0.0.1:5560"]
      >>> config = load_config(flags, {})
      >>> worker = subprocess.Popen([sys.executable, "-m", "zerobeast.services.worker", *flags])
      >>> with zb.RemoteActing(config, timeout_s=300.0) as env:
      ...     batch = env.step(env.policy())
      >>> steps, rollouts = batch.reward.shape
      >>> steps == config.learner.unroll_length + 1, rollouts == config.learner.batch_size
      (True, True)
      >>> worker.terminate()
      >>> code = worker.wait()
    """

    def __init__(self, config: RunConfig, timeout_s: float = 60.0) -> None:
        self._config, self._timeout_s = config, timeout_s
        self.episodes: list[tuple[float, int]] = []
        self.agent_steps = 0
        self._rollouts: Rollouts | None = None  #: the last batch, while it is not acknowledged
        self._begun: _Run | None = None
        with ExitStack() as stack:
            context = open_context(config.security, "learner")
            stack.callback(context.term)
            endpoint = config.learner.endpoint
            self._sockets = LearnerSockets(context, endpoint, random_id(), self._begin, stack)
            self._run = self._await(lambda: self._begun, f"no worker has come to {endpoint}")
            self._resources = stack.pop_all()
        self._away, self._ends = Computation(time.monotonic), threading.Event()
        self._away.__enter__()
        threading.Thread(target=self._attend, daemon=True).start()

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def env(self) -> EnvSpec:
        """What one environment looks like."""
        return self._run.algorithm.env

    @property
    def versions(self) -> int:
        """How many policy versions were published."""
        return self._run.publisher.version + 1

    @property
    def syncs(self) -> int:
        """Policy versions that workers were seen to act with, counted separately for each worker."""
        return self._run.intake.acting.syncs

    def policy(self) -> Network:
        """A new network on the CPU, with the initial weights that `seed` determines."""
        return self._run.algorithm.network()

    def step(self, policy: Network) -> Batch:
        """Publish a policy, which workers take according to `sync.rule`, and wait for the next B rollouts.

        Returns:
          T whole steps of each rollout, and the observation after them, on the CPU. Valid until the next call.

        Raises:
          ConfigError: the network does not have the structure of those that `policy` makes.
          PeerLost: too few rollouts came in time.
        """
        run = self._run
        if layout_id(policy) != run.layout:
            which = f"algo {self._config.algo} has for {self.env.env_id}"
            raise ConfigError(f"step: got a network of another structure than {which}: expected one that `policy` made")
        self._away.__exit__()
        self.agent_steps = max(self.agent_steps, int(policy.agent_steps))  # a saved policy has more
        policy.agent_steps.fill_(self.agent_steps)
        self._measure(policy)
        run.publisher.publish(policy, run.publisher.version + 1)
        self._acknowledge()
        rows = self._await(lambda: run.intake.take(time.monotonic()), "too few rollouts have come from workers")
        queue = run.intake.queue
        self._rollouts = Rollouts(rows, run.record, self.env, CPU, tasks=queue.tasks, origins=queue.origins)
        self.agent_steps += len(rows) * self._config.learner.unroll_length
        self._away.__enter__()
        return self._rollouts.batch

    def close(self) -> None:
        """Send BYE to the workers."""
        self._ends.set()
        self._away.__exit__()
        self._sockets.plane.farewell()
        self._resources.close()

    def _attend(self) -> None:
        """Answer the workers while the script computes."""
        while not self._ends.wait(POLL_S):
            self._away.meanwhile(lambda: self._sockets.turn(time.monotonic()))

    def _begin(self, theirs: Terms) -> Intake:
        self._begun = start_run(self._config, theirs, self._for)
        self._sockets.plane = self._begun.intake
        return self._begun.intake

    def _for(self, env: EnvSpec) -> _Run:
        config, algorithm = self._config, make_algorithm(self._config, env)
        record = rollout_record(env, algorithm.policy, config.learner.unroll_length)
        queue = RolloutQueue(lambda count: np.zeros(count, record.dtype), config.learner.batch_size)
        terms = terms_of(config, env, algorithm.policy)
        port, epoch = self._sockets.port, self._sockets.plane.epoch
        ahead = int(config.actor.collect_ahead)
        intake = Intake(port, epoch, config.learner.window, terms, queue, SavedLedger(), ahead=ahead)
        publisher = VersionPublisher(self._sockets.publisher, None, intake.epoch, intake.acting)
        return _Run(algorithm, record, layout_id(algorithm.network()), intake, publisher)

    def _measure(self, policy: Network) -> None:
        """Measure how far it diverges from the policies that acted in the last batch."""
        if self._rollouts is None or not self._config.sync.parsed.measured:
            return
        run, versions = self._run, self._rollouts.rows["policy_version"]
        found = divergences(run.algorithm, policy, self._rollouts.batch, acting_dtype(self._config, CPU))
        run.intake.acting.measure(run.intake.queue.acting, versions, found)

    def _acknowledge(self) -> None:
        """Return the credit of the last batch, now that what was learned from it is published."""
        if self._rollouts is None:
            return
        messages = self._run.intake.use(len(self._rollouts), learned=True)
        self.episodes = [(value, length) for message in messages for value, length, _ in message.episodes]
        self._rollouts = None

    def _await(self, found: Callable[[], T | None], what: str) -> T:
        """Serve the workers until `found` returns a value."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            self._sockets.turn(time.monotonic())
            if (value := found()) is not None:
                return value
            if time.monotonic() > deadline:
                raise PeerLost(f"{what} in {self._timeout_s:g} s")
            self._sockets.poller.wait(POLL_S)
