"""What a policy draws actions from. Every kind of action space has a family of distributions, a member of which is
made from flat parameters [..., P]: those that a network puts out, that travel as the extra `logits`, and that a loss
compares.

    family = family_of(env.action)
    pi, mu = family.of(logits), family.of(batch.extras["logits"])
    log_rhos = pi.log_prob(actions) - mu.log_prob(actions)

    discrete          one categorical             P = choices: unnormalised log-probabilities
    multi_discrete    independent categoricals    P = choices of all components, component by component
    box               independent normals         P = 2 per component: all means, then all log standard deviations,
                                                  which `zerobeast.common.ops.gaussian` bounds softly
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from zerobeast.common.errors import ConfigError
from zerobeast.common.ops.categorical import Categorical, MultiCategorical
from zerobeast.common.ops.gaussian import Box, Gaussian, SquashedGaussian
from zerobeast.common.wire.specs import ActionSpec


class Distribution(Protocol):
    """One distribution of actions [*shape] at every place of [...]."""

    def sample(self, generator: torch.Generator) -> Tensor:
        """An action for each place, [..., *shape]."""

    def mode(self) -> Tensor:
        """The likeliest action, [..., *shape]."""

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-probability, or density, [...] of actions [..., *shape]."""

    def entropy(self) -> Tensor:
        """Entropy in nats, [...]; of continuous actions it may be negative."""

    def kl(self, other: Any) -> Tensor:
        """KL(self || other), [...], of two members of one family."""

    def kl_parts(self, other: Any) -> tuple[Tensor, ...]:
        """What is limited on its own, [...] each: `kl` alone, or that of the means and that of the deviations."""


class Family(NamedTuple):
    """The distributions over one action space."""

    n_params: int  #: P
    of: Callable[[Tensor], Distribution]  #: parameters [..., P] -> member


def family_of(action: ActionSpec, *, squash: bool = False) -> Family:
    """The family for an action space.

    Args:
      action: the space.
      squash: whether real actions are squashed into their box, instead of being clipped to it by the env-server.

    Raises:
      ConfigError: they are to be squashed into a box that has no bounds.
    """
    if action.kind == "discrete":
        return Family(action.sizes[0], Categorical)
    if action.kind == "multi_discrete":
        return Family(sum(action.sizes), partial(MultiCategorical, sizes=action.sizes, shape=action.shape))
    box = Box(action)
    if squash and not box.bounded:
        raise ConfigError("net.squash_actions: expected false, because the actions of this environment have no bounds")
    return Family(2 * len(action.low), partial(SquashedGaussian if squash else Gaussian, box=box))
