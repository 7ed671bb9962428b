"""Sample Factory: APPO with the settings of the package's own examples.

LunarLander has no example: it gets the flags that `sf_examples/train_gym_env.py` gives for CartPole. The other
processes are suspended during evaluations, which run in the main process with the newest weights.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import psutil
import torch
from referee import Referee, parse_terms, play_whole  # beside this script
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.algo.utils.action_distributions import argmax_actions
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.algo.utils.model_sharing import make_parameter_client
from sample_factory.algo.utils.rl_utils import prepare_and_normalize_obs
from sample_factory.envs.create_env import create_env
from sample_factory.envs.env_utils import register_env
from sample_factory.model.model_utils import get_rnn_size
from sample_factory.train import make_runner
from sample_factory.utils.attr_dict import AttrDict
from sample_factory.utils.timing import Timing
from sf_examples.atari.train_atari import parse_atari_args, register_atari_components
from sf_examples.mujoco.train_mujoco import parse_mujoco_cfg, register_mujoco_components
from sf_examples.train_gym_env import make_gym_env_func, parse_custom_args
from signal_slot.signal_slot import EventLoopObject

#: as in the command line that the example gives
GYM = """--algo=APPO --use_rnn=False --num_envs_per_worker=20 --policy_workers_per_policy=2 --recurrence=1
    --with_vtrace=False --batch_size=512 --reward_scale=0.1 --save_every_sec=10 --experiment_summaries_interval=10"""


class Example(NamedTuple):
    """How one of the examples trains."""

    env: str  #: by the package's name
    parse: Any
    flags: str = ""
    skipped: int = 1  #: frames that the package counts for an agent step


EXAMPLES = {
    "CartPole-v1": Example("CartPole-v1", parse_custom_args, GYM),
    "LunarLander-v3": Example("LunarLander-v2", parse_custom_args, GYM),
    "PongNoFrameskip-v4": Example("atari_pong", parse_atari_args, skipped=4),
    "HalfCheetah-v5": Example("mujoco_halfcheetah", parse_mujoco_cfg),
}


class Judge(EventLoopObject, AlgoObserver):
    """Evaluates after training steps, in the process that supervises the others."""

    def __init__(self, runner: Any, referee: Referee, skipped: int) -> None:
        super().__init__(runner.event_loop, "judge")
        self._runner, self._referee, self._skipped = runner, referee, skipped
        self._weights: Any = None

    def on_connect_components(self, runner: Any) -> None:
        """Called by the runner: have the learner pass on its weights, which lie in shared memory."""
        runner.learners[0].model_initialized.connect(self.take_weights)

    def take_weights(self, model: tuple[Any, ...]) -> None:
        """Called once by the learner."""
        server, runner = self._runner.learners[0].param_server, self._runner
        self._weights = make_parameter_client(runner.cfg.serial_mode, server, runner.cfg, runner.env_info, Timing())
        self._weights.on_weights_initialized(*model[1:])

    def on_training_step(self, runner: Any, _iteration: int) -> None:
        """Called by the runner after each update, just before it checks its limit."""
        if self._weights and self._referee.saw(runner.env_steps.get(0, 0) // self._skipped, self._play):
            runner.cfg.train_for_env_steps = 0

    def _play(self) -> float:
        self._weights.ensure_weights_updated()  # which needs a lock that the learner must not hold for long
        cfg, model = self._runner.cfg, self._weights.actor_critic
        env = create_env(cfg.env, cfg=cfg, env_config=AttrDict(worker_index=0, vector_index=0, env_id=0))
        if self._skipped == 1:  # the environments of Atari have it inside
            env = gymnasium.wrappers.RecordEpisodeStatistics(env)
        states = torch.zeros([1, get_rnn_size(cfg)])

        def act(observation: Any) -> Any:
            rows = prepare_and_normalize_obs(model, {"obs": torch.as_tensor(np.asarray(observation))[None]})
            model(rows, states)
            action = argmax_actions(model.action_distribution())[0].numpy()
            discrete = isinstance(env.action_space, gymnasium.spaces.Discrete)
            return int(action) if discrete else np.clip(action, env.action_space.low, env.action_space.high)

        with suspended_children(), torch.no_grad():
            return float(play_whole(env, act, self._referee.terms))


@contextlib.contextmanager
def suspended_children() -> Iterator[None]:
    """Suspend all processes that this one has started."""
    children = psutil.Process().children(recursive=True)
    for child in children:
        child.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for child in children:
            child.send_signal(signal.SIGCONT)


def main() -> int:
    """Train until the race is over."""
    referee = Referee(parse_terms())
    example = EXAMPLES[referee.terms.env]
    register_atari_components()
    register_mujoco_components()
    for name in ("CartPole-v1", "LunarLander-v2"):
        register_env(name, make_gym_env_func)
    own = f"--env={example.env} --experiment=race --train_dir=. --device=cpu --seed={referee.terms.seed}"
    _, runner = make_runner(example.parse([*example.flags.split(), *own.split()]))
    runner.register_observer(Judge(runner, referee, example.skipped))
    if runner.init() != ExperimentStatus.SUCCESS or runner.run() != ExperimentStatus.SUCCESS:
        return 1
    referee.report(version("sample-factory"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
