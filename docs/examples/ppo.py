"""PPO (Schulman et al. 2017, arXiv:1707.06347) against gymnasium's vector environments, wherever they are.

python docs/examples/ppo.py                                            # in this process
python docs/examples/ppo.py tcp://10.0.0.7:5550 tcp://10.0.0.8:5550    # on two other machines, of which one may fail

It is written for NEXT_STEP autoreset, gymnasium's default: the step after the end of an episode ignores its action and
returns the first observation of the next. That transition is void and masked out of every loss, and so are the steps of
an environment while its env-server is lost.
"""

import sys
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.vector import VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch import Tensor, nn
from torch.distributions import Categorical

import zerobeast

ENV, NUM_ENVS, STEPS = "CartPole-v1", 16, 128  #: environments, and steps of each between two updates
TOTAL_STEPS = 300_000
GOAL = 450.0  #: mean return at which to stop
DISCOUNT, LAMBDA, CLIP = 0.99, 0.95, 0.2
LEARNING_RATE, EPOCHS, MINIBATCHES = 1e-3, 6, 8
VALUE_COST, ENTROPY_COST, MAX_GRADIENT = 0.5, 0.01, 0.5


def make_envs(endpoints: list[str]) -> VectorEnv[Any, Any, Any]:
    """Make the environments: the only place that depends on where they are."""
    if not endpoints:
        return gymnasium.make_vec(ENV, NUM_ENVS)
    return zerobeast.ClusterVectorEnv(endpoints, ENV, NUM_ENVS, step_timeout_s=2.0)


class Agent(nn.Module):
    """A policy and a value function, each with an MLP of its own."""

    def __init__(self, obs_size: int, choices: int) -> None:
        super().__init__()
        self.policy, self.value = (self._mlp(obs_size, n) for n in (choices, 1))
        with torch.no_grad():  # begin with a nearly uniform policy
            self.policy[-1].weight *= 0.01

    def forward(self, obs: Tensor) -> tuple[Categorical, Tensor]:
        """The distribution of actions, and values [...], of observations [..., obs_size]."""
        return Categorical(logits=self.policy(obs)), self.value(obs).squeeze(-1)

    @staticmethod
    def _mlp(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
        )  # fmt: skip


class Steps(NamedTuple):
    """T steps of N environments; all [T, N], obs [T + 1, N, obs_size]."""

    obs: Tensor
    actions: Tensor
    log_probs: Tensor  #: of the actions, when they were taken
    rewards: Tensor
    terminated: Tensor
    over: Tensor  #: the episode ended: terminated or truncated
    valid: Tensor  #: it was a step of an episode


class Collector:
    """Steps the environments and keeps their current observations."""

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        self.envs = RecordEpisodeStatistics(envs)
        self.obs, _ = self.envs.reset(seed=1)
        self.over = np.zeros(NUM_ENVS, np.bool_)

    @torch.no_grad()
    def collect(self, agent: Agent) -> Steps:
        """Play `STEPS` steps in each environment."""
        observations, steps = [self.obs], []
        for _ in range(STEPS):
            policy, _ = agent(torch.from_numpy(self.obs))
            actions = policy.sample()
            self.obs, rewards, terminated, truncated, infos = self.envs.step(actions.numpy())
            over_before, self.over = self.over, terminated | truncated
            valid = ~over_before & ~infos.get("lost", np.zeros(NUM_ENVS, np.bool_))
            observations.append(self.obs)
            entries = (rewards.astype(np.float32), terminated, self.over, valid)
            steps.append((actions, policy.log_prob(actions), *map(torch.from_numpy, entries)))
        return Steps(torch.from_numpy(np.stack(observations)), *map(torch.stack, zip(*steps, strict=True)))


def advantages(steps: Steps, values: Tensor) -> Tensor:
    """Generalised advantages (Schulman et al. 2016, arXiv:1506.02438), [T, N]; 0 where a step is not valid.

    The last observation of each episode is in the sequence. If the episode was truncated, the return goes on with
    its value; if it terminated, the return ends.
    """
    deltas = steps.rewards + DISCOUNT * values[1:] * ~steps.terminated - values[:-1]
    found, following = torch.zeros_like(deltas), torch.zeros(deltas.shape[1])
    for t in reversed(range(len(deltas))):
        following = steps.valid[t] * (deltas[t] + DISCOUNT * LAMBDA * ~steps.over[t] * following)
        found[t] = following
    return found


def update(agent: Agent, optimizer: torch.optim.Optimizer, steps: Steps) -> None:
    """Several epochs over the valid steps, in minibatches."""
    with torch.no_grad():
        values = agent(steps.obs)[1]
    gains = advantages(steps, values)
    chosen = steps.valid
    data = (steps.obs[:-1], steps.actions, steps.log_probs, gains, gains + values[:-1])
    obs, actions, old_log_probs, gains, returns = (each[chosen] for each in data)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(obs)).chunk(MINIBATCHES):
            policy, value = agent(obs[rows])
            ratio = (policy.log_prob(actions[rows]) - old_log_probs[rows]).exp()
            gain = (gains[rows] - gains[rows].mean()) / (gains[rows].std() + 1e-8)
            surrogate = torch.minimum(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
            value_loss = (value - returns[rows]).square().mean()
            loss = VALUE_COST * value_loss - surrogate - ENTROPY_COST * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), MAX_GRADIENT)
            optimizer.step()


def train(envs: VectorEnv[Any, Any, Any]) -> float:
    """Train until `GOAL` or `TOTAL_STEPS`; returns the mean return of the newest 50 episodes."""
    torch.manual_seed(1)
    agent = Agent(envs.single_observation_space.shape[0], envs.single_action_space.n)
    optimizer = torch.optim.Adam(agent.parameters(), LEARNING_RATE, eps=1e-5)
    collector, mean = Collector(envs), 0.0
    for done in range(0, TOTAL_STEPS, NUM_ENVS * STEPS):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - done / TOTAL_STEPS)
        steps = collector.collect(agent)
        if steps.valid.any():
            update(agent, optimizer, steps)
        mean = float(np.mean(list(collector.envs.return_queue)[-50:] or [0.0]))
        print(f"{done + NUM_ENVS * STEPS} steps, {steps.valid.float().mean():.0%} valid, return {mean:.1f}", flush=True)
        if mean >= GOAL:
            break
    return mean


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        train(make_envs(sys.argv[1:]))
    except zerobeast.BeastError as error:
        sys.exit(str(error))
