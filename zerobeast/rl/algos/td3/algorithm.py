"""TD3: DDPG with several critics, a policy that is updated less often, and noise on the actions of targets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zerobeast.rl.algos.control.networks import BoxPolicy
from zerobeast.rl.algos.ddpg.algorithm import DDPG, DDPGLearning
from zerobeast.rl.algos.td3.config import TD3Config
from zerobeast.rl.protocol import Learned, Metrics


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
        self._updates = 0  #: of the critics
        self._improved: Metrics = {"policy_loss": torch.zeros((), device=net.device)}  #: of its last update

    def next_actions(self, features: Tensor) -> Tensor:
        """[N, d] by the target policy, with clipped noise (equation 14)."""
        actions = super().next_actions(features)
        if self._td3.target_noise == 0:
            return actions
        most = self._td3.target_noise_clip
        noise = (self._td3.target_noise * torch.randn_like(actions)).clamp_(-most, most)
        return noise.add_(actions).clamp_(-1.0, 1.0)

    def improve(self, features: Tensor, agent_steps: int) -> tuple[bool, Metrics]:
        """As DDPG, but only at every d-th update of the critics."""
        self._updates += 1
        applied = True
        if self._updates % self._td3.policy_delay == 0:
            applied, self._improved = super().improve(features, agent_steps)
        return applied, self._improved

    def step(self, agent_steps: int) -> Learned:
        """As DDPG, but `changed` only if at least one of these updates was of the policy, or its encoder learns too."""
        before = self._updates // self._td3.policy_delay
        learned = super().step(agent_steps)
        improved = self._updates // self._td3.policy_delay > before
        encodes = any(weights.requires_grad for weights in self._net.vectors.parameters())
        return learned if encodes else learned._replace(changed=improved)

    def state(self) -> dict[str, Any]:
        """The training state besides the policy, for a checkpoint."""
        return {**super().state(), "updates": self._updates, "improved": self._improved}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        super().load(state)
        self._updates = state["updates"]
        self._improved = {name: value.to(self._net.device) for name, value in state["improved"].items()}
