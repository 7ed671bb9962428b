"""Rewards as the learner sees them."""

import math

import pytest
import torch

from zerobeast.rl.algos.impala.config import SPEC
from zerobeast.rl.learning.returns import shaped


@pytest.mark.parametrize("clipping", ["none", "abs_one", "soft_asymmetric"])
def test_rewards_are_scaled_then_clipped(clipping: str) -> None:
    rewards, scale = [-200.0, -3.0, -0.01, 0.0, 0.01, 3.0, 200.0], 2.0
    by_hand = {
        "none": [scale * r for r in rewards],
        "abs_one": [max(-1.0, min(1.0, scale * r)) for r in rewards],
        "soft_asymmetric": [(5.0 if r > 0 else 1.5) * math.tanh(scale * r / 5.0) for r in rewards],
    }
    settings = SPEC.settings.model_validate({"reward_clipping": clipping, "reward_scale": scale})
    torch.testing.assert_close(shaped(torch.tensor(rewards), settings), torch.tensor(by_hand[clipping]))
