"""How much each of many environments explores. Pure functions of tensors, for `Algorithm.act`."""

import torch
from torch import Tensor

BASE, ALPHA = 0.4, 7.0  #: probability at the first place, and how much less the last one explores: Horgan et al. 2018


def epsilons(slots: Tensor, places: int) -> Tensor:
    """A ladder of exploration: environment i of N takes random actions with probability base^(1 + alpha i / (N - 1)).

    Horgan et al. 2018 (Ape-X), section 4. Actors come and go, so their number is not known; the ladder therefore has a
    fixed number of places, which slot numbers take in turn.

    Args:
      slots: [B] int64, as `Algorithm.act` gets them.
      places: N, at least 1; with 1 all explore with probability base.

    Returns:
      [B] float32.
    """
    place = (slots % places).float() / max(1, places - 1)
    return torch.pow(BASE, 1.0 + ALPHA * place)


def anneal_epsilon(agent_steps: Tensor, final: float, over: int) -> Tensor:
    """Probability of a random action: linear from 1 at the start to `final` after `over` agent steps, then constant.

    Mnih et al. 2015, "Training details".

    Args:
      agent_steps: [] int64, of the run.
      final: the probability at the end.
      over: agent steps until `final` is reached, at least 1.

    Returns:
      [] float32.
    """
    return 1.0 - (1.0 - final) * (agent_steps.float() / over).clamp(max=1.0)


def best_action(q: Tensor, legal: Tensor | None = None) -> Tensor:
    """The legal action with the highest value: values [..., A] and optionally a mask [..., A] -> [...] int64."""
    return (q if legal is None else q.masked_fill(~legal, float("-inf"))).argmax(-1)


def select_actions(answers: Tensor, actions: Tensor) -> Tensor:
    """The answers for actions [...]: [..., A] or [..., A, K] -> [...] or [..., K]."""
    rest = answers.shape[actions.ndim + 1 :]
    places = actions.long().reshape(*actions.shape, 1, *[1] * len(rest)).expand(*actions.shape, 1, *rest)
    return answers.gather(actions.ndim, places).squeeze(actions.ndim)


def epsilon_greedy(q: Tensor, epsilon: Tensor, generator: torch.Generator, legal: Tensor | None = None) -> Tensor:
    """The best action, or with probability epsilon a uniformly random legal one.

    Args:
      q: [B, A].
      epsilon: [B] or [].
      generator: source of all randomness.
      legal: [B, A] bool; None: all are.

    Returns:
      [B] int64.
    """
    draws = torch.rand(q.shape[0], q.shape[1] + 1, generator=generator, device=q.device)
    return torch.where(draws[:, -1] < epsilon, best_action(draws[:, :-1], legal), best_action(q, legal))
