"""Distributions over returns with mass on K fixed values, the atoms (Bellemare et al. 2017, arXiv:1707.06887)."""

import torch
from torch import Tensor


def project(probs: Tensor, rewards: Tensor, discounts: Tensor, v_min: float, v_max: float) -> Tensor:
    """The distribution of reward + discount Z, projected onto the atoms of Z: algorithm 1.

    Mass that falls between two atoms is split between them, more to the nearer; mass beyond an end goes to the atom at
    that end. So each atom gives to two, and no [N, K, K] is needed.

    Args:
      probs: [N, K], of Z, K at least 2.
      rewards: [N].
      discounts: [N], 0 if nothing follows.
      v_min: the lowest atom; the others follow at even distances.
      v_max: the highest.

    Returns:
      [N, K], each row with the mass of its row of `probs`.
    """
    assert probs.shape[:1] == rewards.shape == discounts.shape, "want probs [N, K], rewards [N] and discounts [N]"
    last = probs.shape[1] - 1
    values = rewards.unsqueeze(1) + discounts.unsqueeze(1) * atoms(probs, v_min, v_max)
    places = (values.clamp(v_min, v_max) - v_min) * (last / (v_max - v_min))  # in units of the distance, 0 to K - 1
    places = places.clamp(max=last)  # rounding may go just past the last one, which would make a mass negative
    below = places.floor().clamp(max=last - 1)
    share = places - below
    index, above = below.long(), probs * share
    return torch.zeros_like(probs).scatter_add_(1, index, probs - above).scatter_add_(1, index + 1, above)


def atoms(like: Tensor, v_min: float, v_max: float) -> Tensor:
    """[K] values of the atoms of distributions [..., K]."""
    return torch.linspace(v_min, v_max, like.shape[-1], dtype=like.dtype, device=like.device)
