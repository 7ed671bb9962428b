"""PPO on CartPole-v1 with Stable-Baselines3. The settings are those that RL Zoo lists for this environment."""

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

envs = make_vec_env("CartPole-v1", n_envs=8, seed=1)
model = PPO(
    "MlpPolicy",
    envs,
    n_steps=32,
    batch_size=256,
    n_epochs=20,
    gamma=0.98,
    gae_lambda=0.8,
    ent_coef=0.0,
    learning_rate=lambda left: left * 1e-3,
    clip_range=lambda left: left * 0.2,
    seed=1,
    device="cpu",
)
model.learn(100_000)
model.save("cartpole-sb3")

policy = PPO.load("cartpole-sb3", device="cpu")
mean, _ = evaluate_policy(policy, make_vec_env("CartPole-v1", seed=100), n_eval_episodes=20)
print(f"mean greedy return {mean:.1f}")
