"""Rows in, a better policy out: what needs torch in the learner, and nothing that needs a socket.

    trainer = Trainer(config, device, env)
    trainer.add(rows, tasks, origins)    # B rows of a rollout record, and whose
    learned = trainer.step()             # if `trainer.learning.due`
    trainer.wait()                       # from now on the rows may be reused
    trainer.state() / trainer.load()     # what a checkpoint holds; training goes on bit for bit

The trainer only counts; how rollouts are stored or learned from is up to `zerobeast.rl.protocol`.
"""

import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from zerobeast.common.errors import CheckpointError, TrainingDiverged, raise_as
from zerobeast.common.settings import RunConfig
from zerobeast.common.wire import EnvSpec, Origin, PolicySpec, RecordSpec, rollout_record
from zerobeast.rl.data import Batch, Rollouts
from zerobeast.rl.factory import begin_learning, make_algorithm
from zerobeast.rl.nets import Network, autocast, flatten, pick_dtype
from zerobeast.rl.nets.checkpoint import UNREADABLE_ERRORS
from zerobeast.rl.ops import ranks
from zerobeast.rl.protocol import OF_ITS_RUN, Algorithm, Learned
from zerobeast.services.learner.checkpoint import CHECKPOINT_FORMAT, load_model, random_state, restore_random_state
from zerobeast.services.learner.parent import Parent

MAX_NONFINITE_IN_A_ROW = 10


@dataclass
class Counters:
    """Where a run stands."""

    agent_steps: int = 0  #: T per rollout added, the last batch's surplus not counted
    updates: int = 0  #: steps in which something was learned
    optimizer_steps: int = 0  #: of the optimiser; an algorithm may take several in one of its own steps, or none
    policy_version: int = 0  #: updates that changed the policy that acts, however many steps each took
    nonfinite_updates: int = 0  #: updates in which nothing was learned: no loss or gradient was finite
    elapsed_s: float = 0.0  #: wall time of all sessions of the run

    def __post_init__(self) -> None:
        counts = [value for name, value in asdict(self).items() if name != "elapsed_s"]
        if any(type(count) is not int or not 0 <= count < 2**62 for count in counts) or not self.elapsed_s >= 0:
            raise ValueError(f"impossible counters: {self}")


class AddedRows(NamedTuple):
    """What `add` did."""

    agent_steps: int
    behaviour_versions: NDArray[np.int64]  #: [n], of its valid transitions


class Trainer:
    """The policy, how it learns, and the counters of a run.

    Args:
      config: of the run.
      device: to train on.
      env: spec of the rollouts, whichever of the run's environments they are of.
      parent: what the run begins with, if that is what another one has learned.

    Raises:
      ConfigError: the algorithm cannot learn such an environment.
      CheckpointError: the parent does not fit.
    """

    def __init__(self, config: RunConfig, device: torch.device, env: EnvSpec, parent: Parent | None = None) -> None:
        torch.set_num_threads(config.learner.threads or 1)
        torch.manual_seed(config.seed)
        self.config = config
        self.device = device
        self._acting_dtype = acting_dtype(config, device)
        self.env = env
        self.algorithm = make_algorithm(config, env)
        torch.set_default_dtype(torch.float32)  # whatever a file that was imported for it has set
        self.policy: PolicySpec = self.algorithm.policy
        self.record: RecordSpec = rollout_record(env, self.policy, config.learner.unroll_length)
        self.net = self.algorithm.network().to(device)
        if parent:
            parent.fill(self.net)
        self.learning = begin_learning(self.algorithm, config, self.net)
        if parent:
            parent.teach(self.learning, config.section)
        if ranks.rank():  # only now, since what is trained begins alike on all ranks
            torch.manual_seed(ranks.rank_seed(config.seed))
        self.counters = Counters()
        self._nonfinite_in_a_row = 0
        self._added: Rollouts | None = None  #: rollouts of the last `add`
        self.alike = ranks.size() == 1  #: whether all ranks are known to have begun with the same weights
        self.uncounted = 0  #: agent steps that `recover_rows` has found in this store; all ranks count at once

    @property
    def steps_left(self) -> int:
        """Agent steps until the run's total."""
        return max(0, self.config.total_steps - self.counters.agent_steps)

    @property
    def env_frames(self) -> int:
        """Frames of the simulator behind the agent steps."""
        return self.counters.agent_steps * self.env.frame_skip

    def storage(self, capacity: int) -> NDArray[np.void]:
        """[capacity] rows of undefined content to receive into; pinned if the device is a GPU."""
        size = capacity * self.record.row_bytes
        pinned = self.device.type == "cuda"
        rows: NDArray[np.void] = torch.empty(size, dtype=torch.uint8, pin_memory=pinned).numpy().view(self.record.dtype)
        return rows

    def add(
        self,
        rows: NDArray[np.void],
        tasks: NDArray[np.int64] | None = None,
        origins: NDArray[np.int64] | None = None,
    ) -> AddedRows:
        """Hand rollouts to the algorithm, at most up to the run's total of agent steps. Only while no step is due.

        All ranks add as many at once, and count the steps of all.

        Args:
          rows: [B] of `record`; in use until `wait` returns.
          tasks: [B], which of the run's environments each is of; None: all of the first.
          origins: [B, 5], an `Origin` of each; None: of no message.
        """
        here = len(rows) * self.config.learner.unroll_length
        steps = min(self.steps_left, here * ranks.size())
        own = max(0, min(steps - here * ranks.rank(), here))  # of a batch that has the rows of all ranks in order
        self._added = rollouts = Rollouts(rows, self.record, self.env, self.device, own, tasks, origins)
        self.learning.add(rollouts, self.counters.agent_steps)
        self._advance(steps)
        return AddedRows(steps, rows["policy_version"][rollouts.valid])

    def step(self) -> Learned:
        """Learn from what was added. Only while `learning.due`.

        Raises:
          Diverged: `learner.on_nonfinite` is stop; or the tenth step in a row gave a loss or gradient that is not
            finite; or the weights overflow.
        """
        learned = self.learning.step(self.counters.agent_steps)
        self._advance(0)  # a policy that was replaced just now lacks the progress of the run
        self._count(learned)
        return learned

    def divergence(self) -> NDArray[np.float32]:
        """[B, T]: how far the present policy is from the one that acted, in the steps of the last `add`; NaN at a seam.

        Call it before `wait`, since it reads their rows.
        """
        assert self._added is not None, "add comes first"
        return divergences(self.algorithm, self.net, self._added.batch, self._acting_dtype)

    def wait(self) -> None:
        """Wait until no device reads rows: copies may still be under way if nothing was computed from them."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def recover_rows(self) -> Sequence[Origin]:
        """Rows that a killed learner stored after its last checkpoint, which count from now on. To be called once.

        With several ranks they count once all have called `count_recovered`.
        """
        rows = self.learning.recover_rows()
        self.uncounted = len(rows) * self.config.learner.unroll_length
        if ranks.size() == 1:
            self.count_recovered(self.uncounted)
        return rows

    def count_recovered(self, steps: int) -> None:
        """Count the steps that all ranks have recovered."""
        self._advance(min(self.steps_left, steps))
        self.uncounted = 0

    def state(self) -> dict[str, Any]:
        """The trainer's part of a checkpoint."""
        return {
            "format": CHECKPOINT_FORMAT,
            "model": {name: value.detach().cpu() for name, value in self.net.state_dict().items()},
            "learning": self.learning.state(),
            "counters": asdict(self.counters),
            "config": self.config.model_dump(mode="json"),
            "env": self.env.to_wire(),
            "policy": self.policy.to_wire(),
            "rng": random_state(),
        }

    def load(self, path: Path, state: dict[str, Any]) -> None:
        """Continue from a checkpoint.

        Raises:
          CheckpointError: it is of another architecture or optimiser, or its entries are unreadable.
        """
        load_model(path, self.net, state["model"])
        unreadable = raise_as(CheckpointError, "the checkpoint's entries are unreadable", *UNREADABLE_ERRORS)
        with raise_as(CheckpointError, str(path), CheckpointError), unreadable:
            state = self._own(state)
            self.learning.load(state["learning"])
            self.counters = Counters(**state["counters"])
            restore_random_state(state["rng"])
            self.alike = True

    def shared_state(self) -> dict[str, Any]:
        """What is the same on all ranks: the policy, and the training state that is not of a rank's own rows."""
        learning = {name: value for name, value in self.learning.state().items() if name not in OF_ITS_RUN}
        return {"model": self.net.state_dict(), "learning": learning}

    def follow(self, first: dict[str, Any]) -> None:
        """Go on with the `shared_state` of rank 0: another processor may draw or round otherwise."""
        self.alike = True
        if ranks.rank():
            self.net.load_state_dict(first["model"])
            self.learning.load(self.learning.state() | first["learning"])

    def checksum(self) -> int | None:
        """Of the policy that acts; None while ranks may not have begun alike."""
        return zlib.crc32(flatten(self.net).tobytes()) if self.alike else None

    def own_state(self) -> dict[str, Any]:
        """What the checkpoint holds of a rank after the first: its rows, and what counts them and draws from them."""
        own = {name: value for name, value in self.learning.state().items() if name in OF_ITS_RUN}
        return {"learning": own, "rng": random_state()}

    def _own(self, state: dict[str, Any]) -> dict[str, Any]:
        """The same checkpoint as this rank takes it; without rows if there were more or fewer ranks before."""
        others = state.get("ranks", [])
        unchanged = len(others) + 1 == ranks.size()
        if not ranks.rank() and unchanged:
            return state
        own = others[ranks.rank() - 1] if unchanged else {"learning": self.learning.state(), "rng": random_state()}
        of_run = {name: value for name, value in own["learning"].items() if name in OF_ITS_RUN}
        return {**state, "learning": {**state["learning"], **of_run}, "rng": own["rng"]}

    def _advance(self, agent_steps: int) -> None:
        """Count steps, and update `agent_steps` of the policy."""
        self.counters.agent_steps += agent_steps
        self.net.agent_steps.fill_(self.counters.agent_steps)

    def _count(self, learned: Learned) -> None:
        """Count a step, and raise Diverged if too much was skipped."""
        counters = self.counters
        counters.optimizer_steps += learned.steps
        counters.policy_version += learned.changed
        if learned.steps:
            counters.updates += 1
            self._nonfinite_in_a_row = 0
        elif learned.skipped:
            counters.nonfinite_updates += 1
            self._nonfinite_in_a_row += 1
        too_often = self._nonfinite_in_a_row == MAX_NONFINITE_IN_A_ROW
        if too_often or (learned.skipped and self.config.learner.on_nonfinite == "stop"):
            often = f" in {MAX_NONFINITE_IN_A_ROW} updates in a row" if too_often else ""
            at = f"at agent step {self.counters.agent_steps}"
            rate = f"{self.config.section}.learning_rate"
            raise TrainingDiverged(f"the loss or its gradient was not finite{often} {at}", rate)


def acting_dtype(config: RunConfig, device: torch.device) -> torch.dtype:
    """The number format in which brokers act, on a device of the same kind or, by `broker.device`, the CPU."""
    where = torch.device("cpu") if config.broker.device == "cpu" else device
    return pick_dtype(config.broker.precision, where)


def divergences(algorithm: Algorithm, net: Network, batch: Batch, dtype: torch.dtype) -> NDArray[np.float32]:
    """[B, T]: how far `net` is from the policies that acted in a batch; NaN at a seam between episodes.

    `dtype` is the number format in which brokers act: in another, equal weights would differ by its rounding.
    """
    with autocast(net.device, dtype):
        found = algorithm.divergence(net, batch).float()
    measured: NDArray[np.float32] = found.masked_fill(~batch.mask, torch.nan).T.cpu().numpy()
    return measured
