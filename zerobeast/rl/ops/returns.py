"""Returns: over n steps, on a smaller scale, and as distributions with mass on K fixed values, the atoms."""

import torch
from torch import Tensor

EPSILON = 1e-3  #: of the linear term, without which the slope of the inverse would be unbounded


def n_step_returns(*, rewards: Tensor, discounts: Tensor, values: Tensor, mask: Tensor, n: int) -> Tensor:
    """sum_{i < m} gamma^i r_{t+i} + gamma^m v_{t+m} with m = n, or less if the sequence or its episode ends first.

    Args:
      rewards: [T, B] of transition t.
      discounts: [T, B], gamma; 0 where transition t terminated.
      values: [T + 1, B] of the observation before transition t, and of the one after the last.
      mask: [T, B] bool, True where transition t is valid; False where the episode has already ended.
      n: at least 1.

    Returns:
      [T, B]; entries where `mask` is False are meaningless.
    """
    assert rewards.shape == discounts.shape == mask.shape, "expected three [T, B]"
    assert values[1:].shape == rewards.shape, "expected values [T + 1, B]"
    returns = values
    for _ in range(n):  # m = 0 everywhere, then one more where there is one more transition
        longer = rewards + discounts * returns[1:]
        returns = torch.cat([torch.where(mask, longer, values[:-1]), values[-1:]])
    return returns[:-1]


def rescale(x: Tensor, eps: float = EPSILON) -> Tensor:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x, of any shape, for returns that differ by orders of magnitude.

    From Pohlen et al. 2018, "Observe and Look Further", proposition A.2; Kapturowski et al. 2019, section 2.3. Neither
    this nor its inverse takes a difference of two nearly equal numbers, which in float32 would leave four digits of a
    small value.
    """
    return x * (1.0 / (torch.sqrt(x.abs() + 1.0) + 1.0) + eps)


def unrescale(x: Tensor, eps: float = EPSILON) -> Tensor:
    """The inverse of h, of any shape."""
    # with y = h^-1(x), sqrt(|y| + 1) is 1 + |x| share
    share = 2.0 / (1.0 + 2.0 * eps + torch.sqrt((1.0 + 2.0 * eps) ** 2 + 4.0 * eps * x.abs()))
    return x * share * (x.abs() * share + 2.0)


def project(probs: Tensor, rewards: Tensor, discounts: Tensor, v_min: float, v_max: float) -> Tensor:
    """The distribution of reward + discount Z, projected onto the K atoms of Z (Bellemare et al. 2017, algorithm 1).

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
    assert probs.shape[:1] == rewards.shape == discounts.shape, "expected probs [N, K], rewards [N] and discounts [N]"
    last = probs.shape[1] - 1
    values = rewards.unsqueeze(1) + discounts.unsqueeze(1) * atoms(probs, v_min, v_max)
    places = (values.clamp(v_min, v_max) - v_min) * (last / (v_max - v_min))  # in units of the distance, 0 to K - 1
    places = places.clamp(max=last)  # rounding may go just past the last one, which would make a mass negative
    below = places.floor().clamp(max=last - 1)
    share = places - below
    index, above = below.nan_to_num().long(), probs * share  # NaN is no place, but shows in the mass
    return torch.zeros_like(probs).scatter_add_(1, index, probs - above).scatter_add_(1, index + 1, above)


def atoms(like: Tensor, v_min: float, v_max: float) -> Tensor:
    """[K] values of the atoms of distributions [..., K]."""
    return torch.linspace(v_min, v_max, like.shape[-1], dtype=like.dtype, device=like.device)
