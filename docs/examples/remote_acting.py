"""Advantage actor-critic in a script of your own, whose policy acts in workers. See docs/quickstart.md.

python docs/examples/remote_acting.py tcp://127.0.0.1:5560 "adaptive 0.01" &
python -m zerobeast.services.worker --env CartPole-v1 --preset classic --sync.rule "adaptive 0.01"
"""

import sys

import torch
from torch import Tensor

from zerobeast import BeastError, RemoteActing
from zerobeast.common.config.load import load_config
from zerobeast.rl.data import Batch

TOTAL_STEPS = 100_000
DISCOUNT, TRACE_DECAY, REWARD_SCALE = 0.99, 0.95, 0.1


def advantages(batch: Batch, values: Tensor) -> Tensor:
    """Generalised advantage estimates [T, B] of values [T + 1, B] (Schulman et al. 2016, equation 16)."""
    discounts = DISCOUNT * ~batch.terminated[1:]
    errors = batch.mask * (REWARD_SCALE * batch.reward[1:] + discounts * values[1:] - values[:-1])
    decays = TRACE_DECAY * discounts * ~batch.truncated[1:] * batch.mask  # no estimate reaches into the next episode
    found = [torch.zeros_like(values[0])]
    for error, decay in zip(reversed(errors), reversed(decays), strict=True):
        found.append(error + decay * found[-1])
    return torch.stack(found[:0:-1])


def loss_of(policy: torch.nn.Module, batch: Batch) -> Tensor:
    """Policy gradient, value error and entropy over all transitions but those between two episodes."""
    (logits, values), _ = policy(batch.inputs, batch.core_state)
    gains = advantages(batch, values.detach())
    distribution = torch.distributions.Categorical(logits=logits[:-1])
    policy_losses = -distribution.log_prob(batch.actions) * gains
    value_losses = (values[:-1] - (gains + values[:-1]).detach()).square()
    losses = policy_losses + 0.5 * value_losses - 0.01 * distribution.entropy()
    return (losses * batch.mask).sum() / batch.mask.sum()


def train(endpoint: str, rule: str) -> float:
    """Train for `TOTAL_STEPS`; returns the mean return of the last 100 episodes."""
    flags = ["--learner.endpoint", endpoint, "--sync.rule", rule, "--env", "CartPole-v1", "--preset", "classic"]
    returns: list[float] = []
    with RemoteActing(load_config(flags, {})) as env:
        policy = env.policy()
        optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3)
        steps = 0
        while steps < TOTAL_STEPS:
            batch = env.step(policy)
            optimizer.zero_grad()
            loss_of(policy, batch).backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            steps += batch.mask.numel()
            returns = [*returns, *(value for value, _length in env.episodes)][-100:]
        print(f"{env.versions} versions, {env.syncs} of them acted, over all workers")
    return sum(returns) / len(returns)


if __name__ == "__main__":
    try:
        print(f"mean return of the last 100 episodes: {train(*sys.argv[1:]):.1f}")
    except BeastError as error:
        sys.exit(str(error))
