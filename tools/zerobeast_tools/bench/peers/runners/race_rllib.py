"""RLlib with the settings of the package's own examples.

Source: ppo/cartpole_ppo.py, ppo/atari_ppo.py and sac/halfcheetah_sac.py in rllib/examples/algorithms of its
repository. Differences: HalfCheetah has version 5 instead of 4, and frames are stacked by the environment's wrapper.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack
from ray.tune.registry import register_env
from referee import Referee, parse_terms, play_whole  # beside this script

PROCESSES = 8  #: at most; Ray starts no more than it is told that there are cores


def make_env(name: str) -> Any:
    """An environment that knows its raw score."""
    import ale_py  # in the processes that sample too

    gymnasium.register_envs(ale_py)
    env = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(name))
    return wrap_atari_for_new_api_stack(env, framestack=4) if "NoFrameskip" in name else env


def cartpole() -> Any:
    """PPO on CartPole."""
    network = DefaultModelConfig(fcnet_hiddens=[32], fcnet_activation="linear", vf_share_layers=True)
    config = PPOConfig().env_runners(num_env_runners=4, num_envs_per_env_runner=16).learners(num_learners=1)
    return config.training(lr=0.0003, num_epochs=6, vf_loss_coeff=0.01).rl_module(model_config=network)


def pong() -> Any:
    """PPO on Atari."""
    filters = [[16, 4, 2], [32, 4, 2], [64, 4, 2], [128, 4, 2]]
    heads = {"head_fcnet_hiddens": [256], "vf_share_layers": True}
    network = DefaultModelConfig(conv_filters=filters, conv_activation="relu", **heads)
    sizes = {"train_batch_size_per_learner": 4000, "minibatch_size": 128, "num_epochs": 10}
    clips = {"clip_param": 0.1, "vf_clip_param": 10.0, "grad_clip": 100.0, "grad_clip_by": "global_norm"}
    others = {"lambda_": 0.95, "kl_coeff": 0.5, "entropy_coeff": 0.01, "lr": 0.00015}
    config = PPOConfig().environment(clip_rewards=True).training(**sizes, **clips, **others)
    return config.rl_module(model_config=network)


def halfcheetah() -> Any:
    """SAC on HalfCheetah."""
    network = DefaultModelConfig(
        fcnet_hiddens=[256, 256],
        fcnet_activation="relu",
        fcnet_kernel_initializer=torch.nn.init.xavier_uniform_,
        head_fcnet_hiddens=[],
        head_fcnet_activation=None,
        head_fcnet_kernel_initializer="orthogonal_",
        head_fcnet_kernel_initializer_kwargs={"gain": 0.01},
    )
    replay = {"type": "PrioritizedEpisodeReplayBuffer", "capacity": 100_000, "alpha": 0.6, "beta": 0.4}
    rates = {"actor_lr": 2e-4, "critic_lr": 8e-4, "alpha_lr": 9e-4, "lr": None, "tau": 0.005, "n_step": (1, 5)}
    others = {"initial_alpha": 1.001, "target_entropy": "auto", "target_network_update_freq": 1}
    sizes = {"train_batch_size_per_learner": 256, "num_steps_sampled_before_learning_starts": 10_000}
    config = SACConfig().training(replay_buffer_config=replay, **rates, **others, **sizes)
    reporting = {"metrics_num_episodes_for_smoothing": 5, "min_sample_timesteps_per_iteration": 1000}
    return config.rl_module(model_config=network).reporting(**reporting)


CONFIGS = {"CartPole-v1": cartpole, "PongNoFrameskip-v4": pong, "HalfCheetah-v5": halfcheetah}


def make_greedy(algorithm: Any, space: Any) -> Callable[[Any], Any]:
    """An observation -> the most likely action, or the mode, as the newest weights give it."""
    algorithm.env_runner_group.sync_weights(from_worker_or_learner_group=algorithm.learner_group, inference_only=True)
    module = algorithm.get_module()
    distribution = module.get_inference_action_dist_cls()

    def act(observation: Any) -> Any:
        rows = torch.as_tensor(np.asarray(observation, np.float32))[None]
        with torch.no_grad():
            logits = module.forward_inference({"obs": rows})["action_dist_inputs"]
        action = distribution.from_logits(logits).to_deterministic().sample()[0].numpy()
        return np.clip(action, space.low, space.high) if isinstance(space, gymnasium.spaces.Box) else int(action)

    return act


def main() -> None:
    """Train until the race is over."""
    referee = Referee(parse_terms())
    terms = referee.terms
    ray.init(num_cpus=PROCESSES, num_gpus=0, include_dashboard=False, log_to_driver=False)
    register_env("race", lambda _: make_env(terms.env))
    config = CONFIGS[terms.env]().environment("race").debugging(seed=terms.seed, log_level="ERROR")
    algorithm, env = config.build_algo(), make_env(terms.env)

    def play() -> float:
        return float(play_whole(env, make_greedy(algorithm, env.action_space), terms))

    while not referee.saw(int(algorithm.train()["num_env_steps_sampled_lifetime"]), play):
        pass
    referee.report(ray.__version__)
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()
