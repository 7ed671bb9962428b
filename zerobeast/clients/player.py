"""A saved policy that plays: the broker's own inference, with the weights of a checkpoint."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from zerobeast.common.config.load import load
from zerobeast.common.errors import CheckpointError, RemoteProtocolError
from zerobeast.common.files import run_files
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.wire.records import act_record
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.rl.acting.inference import Inference
from zerobeast.rl.factory import make_algorithm
from zerobeast.rl.nets.precision import pick_device, pick_dtype
from zerobeast.rl.nets.weights import flatten
from zerobeast.services.learner.checkpoint import Checkpoints, load_model

POLL_S = 0.0002
LATE = 2**62  #: agent steps after which no algorithm takes random first steps


class Player:
    """Acts in N environments, with frame stack, last action and recurrent state kept as the broker keeps them.

    Args:
      folder: the folder of the run, whose newest checkpoint has the weights.
      env: the environment, as the env-server describes it.
      num_envs: N.
      seed: seed of the actions that are drawn.
      greedy: take the likeliest action instead of drawing one; None: if drawing explores, as with DQN or TD3. Drawn
        actions are those of a run that has ended its random first steps.
      config: settings to use instead of those in the folder.

    Raises:
      CheckpointError: the checkpoint is missing, damaged, or of another environment or architecture.
      ConfigError: the folder has no valid settings, the device is missing, or the algorithm cannot handle this
        environment.
    """

    def __init__(
        self,
        folder: Path,
        env: EnvSpec,
        num_envs: int,
        *,
        seed: int = 0,
        greedy: bool | None = None,
        config: RunConfig | None = None,
    ) -> None:
        config = config or load(["--config", str(folder / run_files.CONFIG)], {}, read_only=True)
        checkpoint = folder / run_files.CHECKPOINT
        saved = Checkpoints(folder).load()
        if saved is None:
            raise CheckpointError(f"{folder}: there is no checkpoint yet")
        env = env.for_policies().among(config.env.id)
        _same_environment(checkpoint, saved, env)
        self.agent_steps = int(saved["counters"]["agent_steps"])
        self.greedy: bool = config.algorithm.drawing_explores if greedy is None else greedy
        algorithm = make_algorithm(config, env)
        net = algorithm.network()
        load_model(checkpoint, net, saved["model"])
        torch.set_num_threads(config.broker.threads or 1)
        device = pick_device(config.broker.device, "broker.device")
        self._inference = Inference(
            algorithm,
            max_rows=num_envs,
            device=device,
            dtype=pick_dtype(config.broker.precision, device),
            seed=seed,
            greedy=self.greedy,
        )
        self._inference.reserve(num_envs)
        self._inference.load(flatten(net))
        self._inference.advance(LATE)
        self._acts = act_record(env, algorithm.policy).dtype
        self._num_envs = num_envs

    def act(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Actions [N, *shape] for rows [N] of `step_record`."""
        batch = self._inference.batch
        batch.rows[:] = rows.view(np.uint8).reshape(batch.rows.shape)
        batch.slots[:] = np.arange(self._num_envs)
        self._inference.submit(self._num_envs, with_cores=False)
        while not self._inference.done():
            time.sleep(POLL_S)
        actions: NDArray[Any] = self._inference.acts.view(self._acts)[: self._num_envs, 0]["action"]
        return actions


def _same_environment(checkpoint: Path, saved: dict[str, Any], env: EnvSpec) -> None:
    try:
        trained = EnvSpec.from_wire(saved["env"])
    except RemoteProtocolError as error:
        raise CheckpointError(f"{checkpoint}: {error}") from error
    for name in ("env_id", "obs", "action", "action_mask", "frame_stack"):
        theirs, ours = getattr(trained, name), getattr(env, name)
        if theirs != ours:
            raise CheckpointError(f"{checkpoint}: was trained with {name} {theirs}, the environment now has {ours}")
