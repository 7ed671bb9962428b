"""Observations as plain vectors, for networks of dense layers only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zerobeast.common.settings.reading import Reading
from zerobeast.common.settings.run import NetConfig
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.rl.nets.normalize import ObsNorm
from zerobeast.rl.nets.torsos import Flat
from zerobeast.rl.ops.tree import leaves


class Vectors(nn.Module):
    """All arrays of an observation, flattened and side by side: numbers as they are or normalised, choices as one-hots.

    Args:
      config: whether to normalise, and whether images may be flattened.
      env: its observations.
    """

    def __init__(self, config: NetConfig, env: EnvSpec) -> None:
        super().__init__()
        self.norm = ObsNorm(env.obs, env.frame_stack, config) if config.normalize_obs else None
        flats = [Flat(array, env.frame_stack, Reading.of(array, config).scale) for array in env.obs.arrays]
        self.flats = nn.ModuleList(flats)
        self.size = sum(flat.size for flat in flats)

    def forward(self, obs: Any) -> Tensor:
        """[T, B, (k,) *frame], a tree of them if there are several arrays -> [T B, size] float32."""
        arrays = [array.flatten(0, 1) for array in leaves(obs)]
        norms = self.norm.of_arrays if self.norm else [None] * len(arrays)
        parts = [flat(*each, torch.float32) for flat, *each in zip(self.flats, arrays, norms, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)
