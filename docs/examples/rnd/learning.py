"""PPO with random network distillation: the error with which a network predicts another, random one is a reward.

Simpler than the paper: intrinsic and extrinsic rewards share a value, and both end with an episode.
"""

import math

import torch
from torch import nn

from rnd.spec import RNDConfig
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.algos.ppo.algorithm import PPO, PPOLearning
from zerobeast.rl.data import Batch
from zerobeast.rl.learning import GradientDescent
from zerobeast.rl.nets.normalize import Moments
from zerobeast.rl.ops.losses import masked_reduce
from zerobeast.rl.ops.tree import leaves
from zerobeast.rl.protocol import Learned


class RND(PPO):
    settings: RNDConfig

    def learning(self, net: PolicyAndValue) -> PPOLearning:
        return RNDLearning(self, net)


class RNDLearning(PPOLearning):
    def __init__(self, algorithm: RND, net: PolicyAndValue) -> None:
        super().__init__(algorithm, net)
        size = algorithm.env.frame_stack * sum(math.prod(array.shape) for array in algorithm.env.obs.arrays)
        last = algorithm.settings.features
        made = (nn.Sequential(nn.Linear(size, 128), nn.ReLU(), nn.Linear(128, last)) for _ in range(2))
        self.random, self.predictor = (network.to(net.device) for network in made)
        self.random.requires_grad_(requires_grad=False)
        self.seen, self.errors = Moments((size,)).to(net.device), Moments().to(net.device)
        self.distillation = GradientDescent(algorithm.config, algorithm.settings, self.predictor.parameters())
        self.parts |= {"random": self.random, "predictor": self.predictor, "seen": self.seen, "errors": self.errors}
        self.parts |= {"distillation": self.distillation}  # all parts are in the checkpoint

    def update(self, batch: Batch, agent_steps: int) -> Learned:
        """Learn from rewards with the bonus of the observations that actions led to, then distil."""
        new = torch.cat([entry[1:].flatten(2).float() for entry in leaves(batch.obs)], -1)  # [T, B, size]
        self.seen.add(new[batch.mask])
        new = ((new - self.seen.mean) / self.seen.variance.clamp(min=1e-4).sqrt()).clamp(-5, 5)
        error = (self.predictor(new) - self.random(new)).square().mean(-1)  # [T, B]
        self.errors.add(error.detach()[batch.mask])
        bonus = error.detach() / self.errors.variance.clamp(min=1e-8).sqrt()
        reward = torch.cat([batch.reward[:1], batch.reward[1:] + self.settings.bonus * bonus * batch.mask])
        learned = super().update(batch._replace(reward=reward), agent_steps)
        self.distillation.step(masked_reduce(error, batch.mask, "mean"), agent_steps, batch.mask)
        return learned._replace(metrics={**learned.metrics, "bonus": masked_reduce(bonus, batch.mask, "mean")})
