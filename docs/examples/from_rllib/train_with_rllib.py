"""PPO on CartPole-v1 with RLlib's new API stack, then its policy played greedily."""

import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False)
config = (
    PPOConfig()
    .environment("CartPole-v1")
    .env_runners(num_env_runners=1, num_envs_per_env_runner=16)
    .training(
        train_batch_size_per_learner=4000,
        minibatch_size=128,
        num_epochs=6,
        lr=3e-4,
        gamma=0.99,
        lambda_=0.95,
        clip_param=0.3,
        vf_loss_coeff=0.01,
        entropy_coeff=0.0,
    )
    .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[32], fcnet_activation="linear", vf_share_layers=True))
    .evaluation(evaluation_duration=20, evaluation_config=PPOConfig.overrides(explore=False))
    .debugging(seed=1, log_level="ERROR")
)
algorithm = config.build_algo()
while algorithm.train()["num_env_steps_sampled_lifetime"] < 200_000:
    pass
mean = algorithm.evaluate()["env_runners"]["episode_return_mean"]
print(f"mean greedy return {mean:.1f}")
algorithm.stop()
