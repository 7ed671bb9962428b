"""Parts of a policy as any package may bring them: `net.torso tests/build/parts.py:Tokens`, `net.memory ...:newest`."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from zerobeast.common.settings.net import NetConfig
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.rl.memory.rarity import Familiar


class Tokens(nn.Module):
    """Each array of an observation is a token of a transformer."""

    def __init__(self, net: NetConfig, env: EnvSpec) -> None:
        super().__init__()
        self.out_size = net.hidden_size or 16
        k = env.frame_stack
        self.embed = nn.ModuleList(nn.Linear(k * math.prod(array.shape), self.out_size) for array in env.obs.arrays)
        self.mix = nn.TransformerEncoderLayer(self.out_size, 2, 32, 0.0, batch_first=True)
        self.seen: list[Any] = []

    def forward(self, obs: Any) -> Tensor:
        self.seen.append(obs)
        arrays = list(obs.values()) if isinstance(obs, dict) else [obs]
        tokens = [layer(array.reshape(len(array), -1).float()) for layer, array in zip(self.embed, arrays, strict=True)]
        mixed: Tensor = self.mix(torch.stack(tokens, 1))
        return mixed.mean(1)


def newest(familiar: Familiar) -> Tensor:
    """A signal of rarity: what was stored last."""
    return familiar.versions.float()


def too_few(familiar: Familiar) -> Tensor:
    """One that forgets an entry."""
    return familiar.returns[1:]
