"""What a policy draws actions from. Every kind of action space has a family of distributions. A member is made
from flat parameters [..., P], which a network outputs, which travel as the extra `logits`, and which a loss compares.

    family = family_of(env.action)
    pi, mu = family.of(logits, batch.legal), family.of(batch.extras["logits"], batch.legal)
    log_rhos = pi.log_prob(batch.actions) - mu.log_prob(batch.actions)

    discrete          one categorical             P = choices: unnormalised log-probabilities
    multi_discrete    independent categoricals    P = choices of all components, component by component
    multi_binary      the same, of two choices each
    box               independent normals         P = 2 per component: all means, then all log standard deviations,
                                                  which `zerobeast.rl.ops.gaussian` bounds softly
    dict, tuple       the product of those        P = those of all arrays, one after the other

Illegal choices have a probability of 0: `family.of(logits, mask)`. Members have `logits` and `probs`, or `mean` and
`stddev`, or of several arrays `parts` that have them, in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from zerobeast.common.wire import ArraySpace, CompositeSpace, Space, iterate_arrays, nest_values
from zerobeast.rl.ops.gaussian import Box, Gaussian, SquashedGaussian

FORBIDDEN = -1e30  #: the logit of an illegal choice: finite, so that 0 times its log-probability is 0


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
        return (self.kl(other),)


class Categorical(Distribution):
    """Over choices, made from unnormalised log-probabilities, `logits`; actions are integers.

    Args:
      logits: [..., A].
      mask: [..., A] bool, True where legal; None: all are. Illegal choices have a probability of 0.
    """

    def __init__(self, logits: Tensor, mask: Tensor | None = None) -> None:
        self.logits = logits if mask is None else logits.masked_fill(~mask, FORBIDDEN)

    @property
    def probs(self) -> Tensor:
        """[..., A]: the probability of each choice."""
        return self.logits.softmax(-1)

    @cached_property
    def log_probs(self) -> Tensor:
        """[..., A], normalised."""
        return self.logits.log_softmax(-1)

    def sample(self, generator: torch.Generator) -> Tensor:
        """Actions [...].

        With E_i exponential, p_i / E_i is largest at i with probability p_i. `torch.multinomial` does the same, at
        twice the cost for a small batch.
        """
        draws = torch.empty_like(self.logits).exponential_(generator=generator)
        return self.probs.div_(draws).argmax(-1)

    def mode(self) -> Tensor:
        return self.logits.argmax(-1)

    def log_prob(self, actions: Tensor) -> Tensor:
        return self.log_probs.gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        return -(self.log_probs.exp() * self.log_probs).sum(-1)

    def kl(self, other: Categorical) -> Tensor:
        return (self.log_probs.exp() * (self.log_probs - other.log_probs)).sum(-1)


class Family(NamedTuple):
    """The distributions over one action space."""

    n_params: int  #: P
    #: the member with parameters [..., P]; perhaps with a mask, [..., choices of all components] bool, True where legal
    of: Callable[..., Distribution]
    components: int  #: among whose choices an action chooses; 0 if some component is a real number

    def select_decisions(self, mask: Tensor, legal: Tensor | None) -> Tensor:
        """Where of the transitions in `mask` [...] more than one action is legal, of which each component has one.

        A policy has no part in the others, such as those of players that wait for their turn.
        """
        return mask if legal is None or not self.components else mask & (legal.sum(-1) > self.components)


def family_of(action: Space, *, squash: bool = False) -> Family:
    """The family for an action space.

    Args:
      action: the space.
      squash: whether real actions are squashed into their box, instead of being clipped to it by the env-server.
    """
    if isinstance(action, CompositeSpace):
        families = [family_of(array, squash=squash) for array in action.arrays]
        of = partial(_arrays, parts=families, action=action)
        real = not all(family.components for family in families)
        return Family(sum(family.n_params for family in families), of, 0 if real else len(action.choices))
    if action.kind == "discrete":
        return Family(action.sizes[0], Categorical, 1)
    if action.kind != "box":
        return Family(sum(action.choices), partial(_components, action=action), len(action.choices))
    box = Box(action)
    normal = SquashedGaussian if squash else Gaussian
    return Family(2 * math.prod(action.shape), lambda params, _mask=None: normal(params, box), 0)


def _components(logits: Tensor, mask: Tensor | None = None, *, action: ArraySpace) -> Independent:
    """Categoricals of the components of actions [..., *shape], from logits [..., P]."""
    batch, sizes = logits.shape[:-1], action.choices
    return Independent(
        [Categorical(*part) for part in zip(torch.split(logits, list(sizes), -1), _split(mask, sizes), strict=True)],
        join=lambda components: torch.stack(components, -1).view(*batch, *action.shape),
        split=lambda actions: actions.reshape(*batch, -1).unbind(-1),
    )


def _arrays(params: Tensor, mask: Tensor | None = None, *, parts: list[Family], action: CompositeSpace) -> Independent:
    """Distributions of the arrays of actions, which are trees."""
    split = torch.split(params, [family.n_params for family in parts], -1)
    masks = _split(mask, [sum(array.choices) for array in action.arrays])
    return Independent(
        [family.of(of, legal) for family, of, legal in zip(parts, split, masks, strict=True)],
        join=lambda arrays: nest_values(action, iter(arrays)),
        split=lambda actions: [values for _, values in iterate_arrays(action, actions)],
    )


def _split(mask: Tensor | None, choices: Sequence[int]) -> Sequence[Tensor | None]:
    return [None] * len(choices) if mask is None else torch.split(mask, list(choices), -1)


class Independent(Distribution):
    """Independent distributions of the parts of an action.

    Args:
      parts: in order.
      join: makes actions of those of the parts.
      split: its inverse.
    """

    def __init__(
        self, parts: Sequence[Distribution], join: Callable[[list[Any]], Any], split: Callable[[Any], Sequence[Any]]
    ) -> None:
        self.parts, self._join, self._split = parts, join, split

    @property
    def logits(self) -> Tensor:
        """Those of the choices of all parts, [..., choices], part by part, if all are choices."""
        return torch.cat([part.logits for part in cast("Any", self.parts)], -1)

    @property
    def probs(self) -> Tensor:
        """Likewise."""
        return torch.cat([part.probs for part in cast("Any", self.parts)], -1)

    def sample(self, generator: torch.Generator) -> Any:
        return self._join([part.sample(generator) for part in self.parts])

    def mode(self) -> Any:
        return self._join([part.mode() for part in self.parts])

    def log_prob(self, actions: Any) -> Tensor:
        pairs = zip(self.parts, self._split(actions), strict=True)
        return torch.stack([part.log_prob(values) for part, values in pairs]).sum(0)

    def entropy(self) -> Tensor:
        return torch.stack([part.entropy() for part in self.parts]).sum(0)

    def kl(self, other: Independent) -> Tensor:
        pairs = zip(self.parts, other.parts, strict=True)
        return torch.stack([mine.kl(theirs) for mine, theirs in pairs]).sum(0)
