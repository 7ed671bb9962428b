"""PPO on CartPole-v1 with CleanRL's ppo.py, then its agent played greedily.

python train_with_cleanrl.py CHECKOUT/cleanrl/ppo.py
"""

import runpy
import sys

import gymnasium
import torch

script = sys.argv[1]
sys.argv = [script, "--env-id", "CartPole-v1", "--total-timesteps", "500000", "--no-cuda"]
agent = runpy.run_path(script, run_name="__main__")["agent"]

env, returns = gymnasium.make("CartPole-v1"), []
for seed in range(20):
    (observation, _), over, total = env.reset(seed=100 + seed), False, 0.0
    while not over:
        logits = agent.actor(torch.as_tensor(observation))
        observation, reward, terminated, truncated, _ = env.step(int(logits.argmax()))
        over, total = terminated or truncated, total + reward
    returns.append(total)
print(f"mean greedy return {sum(returns) / len(returns):.1f}")
