"""A small transformer over the entities of an observation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from own_everything.config import EntitiesConfig
from zerobeast.common.wire import EnvSpec


class Entities(nn.Module):
    """The goal and all others that are present attend to each other; the features are those of the goal."""

    shared = False  # policy and value have one each

    def __init__(self, net: EntitiesConfig, env: EnvSpec) -> None:
        super().__init__()
        self.out_size = size = net.hidden_size or 32
        self.goal, self.other = nn.Linear(2, size), nn.Linear(2, size)
        self.mix = nn.TransformerEncoderLayer(size, net.heads, 2 * size, dropout=0.0, batch_first=True)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """Goals [N, 2], others [N, K, 2] and whether each is present [N, K] -> features [N, out_size]."""
        tokens = torch.cat([self.goal(obs["goal"]).unsqueeze(1), self.other(obs["others"])], 1)
        absent = nn.functional.pad(obs["present"] == 0, (1, 0))  # the goal never is
        mixed: Tensor = self.mix(tokens, src_key_padding_mask=absent)
        return mixed[:, 0]
