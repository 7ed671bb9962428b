"""RLlib: IMPALA, one process that samples 16 environments, one that learns, one that passes the data on."""

from __future__ import annotations

import os
from typing import Any

import gymnasium
import ray
from meter import Meter  # beside this script
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack
from ray.tune.registry import register_env

NATURE = [[32, 8, 4, "valid"], [64, 4, 2, "valid"], [64, 3, 1, "valid"], [512, 7, 1, "valid"]]  #: the last one is dense
FRAGMENT = 50  #: steps of one environment that travel together
#: PongNoFrameskip-v4, by the name that the package's wrapper takes
PONG: dict[str, Any] = {"frameskip": 1, "repeat_action_probability": 0.0}


def make_env(_: Any) -> Any:
    """Pong, in the process that samples."""
    import ale_py

    gymnasium.register_envs(ale_py)
    return wrap_atari_for_new_api_stack(gymnasium.make("ALE/Pong-v5", **PONG), dim=84, frameskip=4, framestack=4)


def configuration() -> Any:
    """The package's defaults, except for what makes the work the same."""
    return (
        IMPALAConfig()
        .environment("pong", clip_rewards=True)
        .env_runners(num_env_runners=1, num_envs_per_env_runner=16, rollout_fragment_length=FRAGMENT)
        .learners(num_learners=1, num_gpus_per_learner=0)
        .training(train_batch_size_per_learner=500)
        .rl_module(model_config=DefaultModelConfig(conv_filters=NATURE, conv_activation="relu", vf_share_layers=True))
        .reporting(min_time_s_per_iteration=1)
        .debugging(seed=0, log_level="ERROR")
    )


def agent_steps(result: dict[str, Any]) -> int:
    """Steps that updates have used; the sampler's count would include those that a busy learner drops.

    The learner appends a step to every fragment, for the bootstrap value, and counts it.
    """
    trained = result.get("learners", {}).get("__all_modules__", {}).get("num_env_steps_trained_lifetime", 0)
    return int(trained) * FRAGMENT // (FRAGMENT + 1)


def main() -> None:
    """Train until the measurement is over."""
    meter = Meter.from_flags()
    ray.init(num_cpus=max(2, os.cpu_count() or 2), num_gpus=0, include_dashboard=False, log_to_driver=False)
    register_env("pong", make_env)
    algorithm = configuration().build_algo()
    while not meter.saw(agent_steps(algorithm.train())):
        pass
    meter.report(ray.__version__)
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()
