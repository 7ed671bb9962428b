"""Training in one process, with actors that are a known number of updates behind.

The services' own parts do all the work, in turn: the env-server's environments, the broker's inference, the actor's
rollouts, the learner's trainer. Only the messages between them are missing, so nothing is left to chance: a seed
decides every number.

    with InProcess(config, lag=8) as run:
        while run.trainer.steps_left:
            run.learn(run.collect())
"""

from collections import deque
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from zerobeast.common.settings import RunConfig
from zerobeast.common.transport import Poller
from zerobeast.common.wire import Origin, act_record
from zerobeast.common.wire.episodes import Entry
from zerobeast.rl.acting.inference import Inference
from zerobeast.rl.nets import pick_dtype
from zerobeast.rl.nets.weights import Bytes, flatten
from zerobeast.services.actor.rollout import RolloutBuilder, Rows
from zerobeast.services.envserver.catalogue import make_vector_env
from zerobeast.services.envserver.spaces import make_legal
from zerobeast.services.envserver.vector import VectorEnv
from zerobeast.services.learner.update import Trainer

CPU = torch.device("cpu")


class InProcess(AbstractContextManager["InProcess"]):
    """A run on the CPU. Every batch holds one rollout of each of its `learner.batch_size` environments.

    Args:
      config: of the run.
      lag: batches between the policy that acts and the one that learns; the initial policy acts in the first `lag`
        batches. A batch is one update, unless the algorithm has a pace of its own.

    Raises:
      ConfigError: the algorithm cannot learn such an environment.
      EnvError: there is no such environment.

    Attributes:
      episodes: those that ended in the newest rollouts.
    """

    def __init__(self, config: RunConfig, lag: int) -> None:
        n = config.learner.batch_size
        self._folder = folder_on_disk(config.root)
        config = config.model_copy(update={"root": self._folder.name, "name": "run"})
        self._envs = make_envs(config, n, config.seed * n % 2**31)  # no two seeds share environments
        spec = self._envs.spec
        self.trainer = Trainer(config, CPU, spec)
        self._origins = np.array([Origin(1, 0, 0, row, n) for row in range(n)])  #: of the next rollouts
        self.episodes: list[Entry] = []
        algorithm = self.trainer.algorithm
        dtype = pick_dtype(config.broker.precision, CPU)
        self._inference = Inference(algorithm, max_rows=n, device=CPU, dtype=dtype, seed=config.seed)
        self._inference.reserve(n)
        self._acts = act_record(spec, algorithm.policy).dtype
        self._builder = RolloutBuilder(spec, algorithm.policy, config.learner.unroll_length, n)
        self._policies: deque[tuple[int, Bytes]] = deque(maxlen=lag + 1)  #: version and weights, oldest first
        self.keep()
        self._builder.restart(self._envs.rows)

    def __exit__(self, *_error: object) -> None:
        self._envs.close()
        self._envs.release(force=True)
        self._folder.cleanup()

    def collect(self) -> Rows:
        """Collect a rollout of every environment with the policy of `lag` batches ago. [learner.batch_size]."""
        version, weights = self._policies[0]
        self._inference.load(weights)
        self.episodes = []
        while not self._builder.complete:
            self._step(version)
        return self._builder.take()

    def learn(self, rows: Rows) -> None:
        """Train on rollouts of `collect` until no step is due, then recycle their memory.

        Raises:
          Diverged: as in the learner.
        """
        self.trainer.add(rows, origins=self._origins)
        self._origins[:, Origin._fields.index("seq")] += 1
        while self.trainer.learning.due:
            self.trainer.step()
        self._builder.recycle(rows)
        self.keep()

    def keep(self) -> None:
        """Have the present policy act once it is `lag` batches old: after each batch, or if it was changed by hand."""
        self._policies.append((self.trainer.counters.policy_version, flatten(self.trainer.net)))

    def _step(self, version: int) -> None:
        self._envs.step(
            make_legal(self._builder.act(self._answers(), version, self._inference.cores), self._envs.spec.action)
        )
        finish(self._envs)
        self._builder.observe(self._envs.rows)
        self.episodes += self._envs.episodes

    def _answers(self) -> NDArray[Any]:
        """The policy's answers to the newest observations: [N] of `act_record`."""
        batch, rows = self._inference.batch, self._envs.rows
        batch.rows[:] = rows.view(np.uint8).reshape(batch.rows.shape)
        batch.slots[:] = np.arange(len(rows))
        self._inference.submit(len(rows), with_cores=self._builder.at_start)
        acts: NDArray[Any] = self._inference.acts.view(self._acts)[:, 0]
        return acts


def folder_on_disk(root: str) -> TemporaryDirectory[str]:
    """A temporary folder on the same disk as other runs, since an algorithm may store rollouts."""
    beside = Path(root).expanduser()
    beside.mkdir(parents=True, exist_ok=True)
    return TemporaryDirectory(dir=beside, prefix=".in-process-")


def make_envs(config: RunConfig, num_envs: int, seed: int) -> VectorEnv:
    """Make environments of a run that step in this thread, and reset them.

    Raises:
      EnvError: there is no such environment.
    """
    server = config.envserver.model_copy(update={"threads": 1, "in_process": True})
    envs = make_vector_env(config.env, num_envs, seed, server)
    finish(envs)
    envs.reset()
    finish(envs)
    return envs


def finish(envs: VectorEnv) -> None:
    """Wait until the environments have finished what they are doing.

    Raises:
      EnvError: as `envs.collect`.
    """
    while not envs.collect():
        Poller(files=envs.files).wait(0.0 if envs.inline else 1.0)
