"""How much each of many environments explores. Pure functions of tensors, for `Algorithm.act`."""

from __future__ import annotations

import torch
from torch import Tensor

BASE, ALPHA = 0.4, 7.0  #: Horgan et al. 2018


def epsilons(slots: Tensor, places: int, base: float = BASE, alpha: float = ALPHA) -> Tensor:
    """A ladder of exploration: environment i of N takes random actions with probability base^(1 + alpha i / (N - 1)).

    Horgan et al. 2018 (Ape-X), section 4. Actors that come and go have no place among a known number of others, so the
    ladder has a fixed number of places, which slot numbers take by turns.

    Args:
      slots: [B] int64, as `Algorithm.act` gets them.
      places: N, at least 1; with 1 all explore with probability `base`.
      base: of the first place, in (0, 1).
      alpha: how much less the last explores.

    Returns:
      [B] float32.
    """
    place = (slots % places).float() / max(1, places - 1)
    return torch.pow(base, 1.0 + alpha * place)
