"""Categorical distributions over choices, made from unnormalised log-probabilities."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

FORBIDDEN = -1e30  #: the logit of an illegal choice: finite, so that 0 times its log-probability is 0


class Categorical:
    """See `zerobeast.rl.ops.distributions.Distribution`; actions are integers.

    Args:
      logits: [..., A].
      mask: [..., A] bool, True where legal; None: all are. Illegal choices have a probability of 0.
    """

    def __init__(self, logits: Tensor, mask: Tensor | None = None) -> None:
        self._logits = logits if mask is None else logits.masked_fill(~mask, FORBIDDEN)

    @cached_property
    def log_probs(self) -> Tensor:
        """[..., A], normalised."""
        return self._logits.log_softmax(-1)

    def sample(self, generator: torch.Generator) -> Tensor:
        """Actions [...].

        With E_i exponential, p_i / E_i is largest at i with probability p_i. `torch.multinomial` does the same, at
        twice the cost for a small batch.
        """
        draws = torch.empty_like(self._logits).exponential_(generator=generator)
        return self._logits.softmax(-1).div_(draws).argmax(-1)

    def mode(self) -> Tensor:
        """The likeliest action [...]."""
        return self._logits.argmax(-1)

    def log_prob(self, actions: Tensor) -> Tensor:
        """[...] of actions [...]."""
        return self.log_probs.gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """[...]."""
        return -(self.log_probs.exp() * self.log_probs).sum(-1)

    def kl(self, other: Categorical) -> Tensor:
        """[...]."""
        return (self.log_probs.exp() * (self.log_probs - other.log_probs)).sum(-1)

    def kl_parts(self, other: Categorical) -> tuple[Tensor]:
        """[...]."""
        return (self.kl(other),)
