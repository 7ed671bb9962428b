"""An adaptive weight of the entropy bonus, so that the policy keeps a given entropy. From the code of SEED RL.

It has its own optimiser. In the policy's optimiser, its gradient would count towards the clipped norm, its pace would
follow the policy's learning rate, and a run could not continue with it from a checkpoint without it, or vice versa.
"""

from typing import Any

import torch
from torch import Tensor

from zerobeast.common.settings import RunConfig
from zerobeast.rl.algos.impala.config import ImpalaConfig
from zerobeast.rl.learning import Dual, GradientDescent

PACE = 0.01  #: learning rate in units of the initial weight: Adam moves it by at most about this much per step


class EntropyWeight:
    """The multiplier of `entropy >= entropy_target`, which starts at `entropy_cost`.

    It never falls to 0, so a policy with more entropy than the target is hardly rewarded for it, but not punished.

    Args:
      config: of the run.
      settings: of its algorithm.
      device: of the entropies.
    """

    def __init__(self, config: RunConfig, settings: ImpalaConfig, device: torch.device) -> None:
        # Dual keeps what it measures below a limit, so it measures minus the entropy
        self._dual = Dual(settings.entropy_cost, limit=-settings.entropy_target).to(device)
        pace = {"optimizer": "adam", "learning_rate": PACE * settings.entropy_cost, "schedule": "constant"}
        # with Adam's epsilon at a hundredth of a nat, steps shrink where the entropy is nearer to its target than that
        own = settings.model_copy(update={**pace, "epsilon": 0.01})
        self._descent = GradientDescent(config, own, self._dual.parameters())

    @property
    def value(self) -> Tensor:
        """[], without gradient; steps do not change it in place."""
        return self._dual.value.detach().clone()

    def step(self, entropy: Tensor, agent_steps: int) -> None:
        """Grow if the mean `entropy` [] is below the target, shrink if it is above."""
        self._descent.step(self._dual.loss(-entropy), agent_steps)
        self._dual.project()

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold."""
        return {"weight": self._dual.state_dict(), "optimizer": self._descent.state()}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self._dual.load_state_dict(state["weight"])
        self._descent.load(state["optimizer"])
