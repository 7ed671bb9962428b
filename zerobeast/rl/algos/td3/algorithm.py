"""TD3: DDPG with several critics, a policy that is updated less often, and noise on the actions of targets."""

from __future__ import annotations

import torch
from torch import Tensor

from zerobeast.rl.algos.control.box_learning import NextActions
from zerobeast.rl.algos.control.networks import BoxPolicy
from zerobeast.rl.algos.ddpg.algorithm import DDPG, DDPGLearning
from zerobeast.rl.algos.td3.config import TD3Config


class TD3(DDPG[TD3Config]):
    """Twin delayed deep deterministic policy gradient."""

    def learning(self, net: BoxPolicy) -> TD3Learning:
        """With twin critics, by default."""
        return TD3Learning(self, net)


class TD3Learning(DDPGLearning):
    """See `BoxLearning` (Fujimoto et al. 2018, algorithm 1)."""

    def __init__(self, algorithm: TD3, net: BoxPolicy) -> None:
        super().__init__(algorithm, net, algorithm.settings.critics)
        self._td3 = algorithm.settings

    def next_actions(self, features: Tensor) -> NextActions:
        """Those of the target policy, with clipped noise (equation 14)."""
        actions = super().next_actions(features).units
        if self._td3.target_noise == 0:
            return NextActions(actions)
        most = self._td3.target_noise_clip
        noise = (self._td3.target_noise * torch.randn_like(actions)).clamp_(-most, most)
        return NextActions(noise.add_(actions).clamp_(-1.0, 1.0))
