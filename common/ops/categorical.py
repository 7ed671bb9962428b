"""The categorical distribution over actions, as functions of unnormalised logits [..., A]."""

from __future__ import annotations

import torch
from torch import Tensor


def log_prob(log_probs: Tensor, actions: Tensor) -> Tensor:
    """Log-probability [...] of integer `actions` [...] under normalised `log_probs` [..., A]."""
    return log_probs.gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)


def entropy(log_probs: Tensor) -> Tensor:
    """Entropy in nats, [...], of normalised `log_probs` [..., A]."""
    return -(log_probs.exp() * log_probs).sum(-1)


def sample(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Actions [...] drawn from `logits` [..., A].

    The largest of p_i / E_i with E_i exponential is i with probability p_i: what `torch.multinomial` does, at half
    its price for a small batch.
    """
    draws = torch.empty_like(logits).exponential_(generator=generator)
    return logits.softmax(-1).div_(draws).argmax(-1)
