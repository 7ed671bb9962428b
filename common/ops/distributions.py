"""What a policy draws actions from. Every kind of action space has a family of distributions. A member is made
from flat parameters [..., P], which a network outputs, which travel as the extra `logits`, and which a loss compares.

    family = family_of(env.action)
    pi, mu = family.of(logits, batch.legal), family.of(batch.extras["logits"], batch.legal)
    log_rhos = pi.log_prob(batch.actions) - mu.log_prob(batch.actions)

    discrete          one categorical             P = choices: unnormalised log-probabilities
    multi_discrete    independent categoricals    P = choices of all components, component by component
    multi_binary      the same, of two choices each
    box               independent normals         P = 2 per component: all means, then all log standard deviations,
                                                  which `zerobeast.common.ops.gaussian` bounds softly
    dict, tuple       the product of those        P = those of all arrays, one after the other

Illegal choices have a probability of 0: `family.of(logits, mask)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from zerobeast.common.ops.categorical import Categorical, MultiCategorical
from zerobeast.common.ops.gaussian import Box, Gaussian, SquashedGaussian
from zerobeast.common.wire.spaces import CompositeSpace, Space, by_array, nested


class Distribution(Protocol):
    """One distribution of actions [*shape] at every place of [...]."""

    def sample(self, generator: torch.Generator) -> Any:
        """An action for each place, [..., *shape]; a tree, if it has several arrays."""

    def mode(self) -> Any:
        """The likeliest action, [..., *shape]."""

    def log_prob(self, actions: Any) -> Tensor:
        """Log-probability, or density, [...] of actions [..., *shape]."""

    def entropy(self) -> Tensor:
        """Entropy in nats, [...]; of continuous actions it may be negative."""

    def kl(self, other: Any) -> Tensor:
        """KL(self || other), [...], of two members of one family."""

    def kl_parts(self, other: Any) -> tuple[Tensor, ...]:
        """Parts limited separately, [...] each: `kl` alone, or that of the means and that of the deviations."""


class Family(NamedTuple):
    """The distributions over one action space."""

    n_params: int  #: P
    make: Callable[[Tensor, Tensor | None], Distribution]  #: parameters [..., P] and mask -> member

    def of(self, params: Tensor, mask: Tensor | None = None) -> Distribution:
        """The member with parameters [..., P].

        Args:
          params: of all arrays of the space.
          mask: [..., choices of all components] bool, True where legal; None: all are.
        """
        return self.make(params, mask)


def family_of(action: Space, *, squash: bool = False) -> Family:
    """The family for an action space.

    Args:
      action: the space.
      squash: whether real actions are squashed into their box, instead of being clipped to it by the env-server.
    """
    if isinstance(action, CompositeSpace):
        families = [family_of(array, squash=squash) for array in action.arrays]
        return Family(sum(family.n_params for family in families), partial(_product, families=families, action=action))
    if action.kind == "discrete":
        return Family(action.sizes[0], Categorical)
    if action.kind != "box":
        return Family(sum(action.choices), partial(MultiCategorical, sizes=action.choices, shape=action.shape))
    box = Box(action)
    normal = SquashedGaussian if squash else Gaussian
    return Family(2 * math.prod(action.shape), lambda params, _mask: normal(params, box))


def _product(params: Tensor, mask: Tensor | None, *, families: list[Family], action: CompositeSpace) -> Product:
    split = torch.split(params, [family.n_params for family in families], -1)
    choices = [sum(array.choices) for array in action.arrays]
    masks = [None] * len(choices) if mask is None else torch.split(mask, choices, -1)
    return Product([family.of(of, legal) for family, of, legal in zip(families, split, masks, strict=True)], action)


class Product:
    """Independent distributions of the arrays of an action. See `Distribution`; actions are trees.

    Args:
      parts: one for each array of the space, in order.
      space: of the actions.
    """

    def __init__(self, parts: list[Distribution], space: CompositeSpace) -> None:
        self._parts, self._space = parts, space

    def sample(self, generator: torch.Generator) -> Any:
        """Actions, a tree of [..., *shape]."""
        return nested(self._space, (part.sample(generator) for part in self._parts))

    def mode(self) -> Any:
        """The likeliest action, a tree of [..., *shape]."""
        return nested(self._space, (part.mode() for part in self._parts))

    def log_prob(self, actions: Any) -> Tensor:
        """[...] of actions, a tree of [..., *shape]."""
        pairs = zip(self._parts, by_array(self._space, actions), strict=True)
        return torch.stack([part.log_prob(values) for part, (_, values) in pairs]).sum(0)

    def entropy(self) -> Tensor:
        """[...]."""
        return torch.stack([part.entropy() for part in self._parts]).sum(0)

    def kl(self, other: Product) -> Tensor:
        """[...]."""
        pairs = zip(self._parts, other._parts, strict=True)
        return torch.stack([mine.kl(theirs) for mine, theirs in pairs]).sum(0)

    def kl_parts(self, other: Product) -> tuple[Tensor]:
        """[...]: one limit for all arrays."""
        return (self.kl(other),)
