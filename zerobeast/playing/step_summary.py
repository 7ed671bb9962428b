"""What a policy expects and prefers at one step, as numbers from 0 to 1 that can be drawn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from zerobeast.common.wire import ArraySpace, iterate_arrays
from zerobeast.rl.ops.distributions import Categorical, Independent
from zerobeast.rl.ops.gaussian import Gaussian
from zerobeast.rl.protocol import HasActionValues, HasDistribution, HasValue
from zerobeast.rl.settings import LearnerSettings

if TYPE_CHECKING:
    from zerobeast.playing.policy import Policy

REACH = 3.0  #: what is shown of a component without bounds: from -3 to 3


class Choice(NamedTuple):
    """A component with some choices."""

    taken: int
    bars: list[float]  #: of each choice, from 0 to 1; empty if the policy has none
    texts: list[str]  #: of each bar

    @property
    def share(self) -> float:
        """The bar of the one that was taken."""
        return self.bars[self.taken] if self.bars else 1.0


class Span(NamedTuple):
    """A component between two bounds, which are 0 and 1."""

    taken: float
    band: tuple[float, float] | None  #: a standard deviation below and above the median, if there are any
    text: str  #: the number that was taken


class StepSummary(NamedTuple):
    """What is shown of one step."""

    value: float | None  #: the expected discounted return, in the environment's units
    heading: str  #: what the components show
    components: list[Choice | Span]  #: of the action, in order
    clipped: bool = False  #: whether the value is of clipped rewards


@torch.no_grad()
def summarize_step(policy: Policy, obs: Any, state: Any, taken: Any, env: str = "", **given: Any) -> StepSummary:
    """The outlook of one environment, the first of several.

    Args:
      policy: whose.
      obs: [N, *shape].
      state: before this step.
      taken: the actions, [N, *shape].
      env: as for `Policy.value`.
      given: as for `Policy.predict`.
    """
    algorithm, space = policy.algorithm, policy.env.action
    value = float(policy.value(obs, state, env=env, **given)[0]) if isinstance(algorithm, HasValue) else None
    settings = policy.config.algorithm
    clipped = isinstance(settings, LearnerSettings) and settings.reward_clipping != "none"
    if isinstance(algorithm, HasActionValues) and isinstance(space, ArraySpace):
        values = policy.action_values(obs, state, **given)[0].float().cpu().numpy()
        choice = _of_values(int(taken[0]), values, given.get("action_mask"))
        return StepSummary(value, "action values", [choice], clipped)
    parts = _leaves(policy.distribution(obs, state, **given)) if isinstance(algorithm, HasDistribution) else iter(())
    found = [part for array, chosen in iterate_arrays(space, taken) for part in _components(array, chosen[0], parts)]
    drawn = any(each.bars if isinstance(each, Choice) else each.band for each in found)
    heading = "action probabilities" if isinstance(found[0], Choice) else "actions, median and deviation"
    return StepSummary(value, heading if drawn else "actions", found, clipped)


def _leaves(distribution: Any) -> Iterator[Any]:
    if isinstance(distribution, Independent):
        for part in distribution.parts:
            yield from _leaves(part)
    else:
        yield distribution


def _components(space: ArraySpace, chosen: NDArray[Any], parts: Iterator[Any]) -> Iterator[Choice | Span]:
    """Those of one array; it takes as many distributions from `parts` as the array has."""
    if space.kind != "box":
        for number in np.ravel(chosen).tolist():
            part = next(parts, None)
            bars = part.log_probs[0].exp().tolist() if isinstance(part, Categorical) else []
            yield Choice(int(number), bars, [f"{bar:.2f}" for bar in bars])
        return
    low, high = (
        np.where(space.bounded, bound, end).ravel() for bound, end in zip(space.bounds, (-REACH, REACH), strict=True)
    )
    part = next(parts, None)
    ends = [part.actions_at(d)[0].float().cpu().numpy() for d in (-1.0, 1.0)] if isinstance(part, Gaussian) else []

    def shares(numbers: ArrayLike) -> list[float]:
        return list(np.clip((np.ravel(numbers) - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0).tolist())

    bands: list[Any] = list(zip(*map(shares, ends), strict=True)) if ends else [None] * low.size
    for share, band, number in zip(shares(chosen), bands, np.ravel(chosen).tolist(), strict=True):
        yield Span(share, band, f"{number:.2f}")


def _of_values(taken: int, values: NDArray[Any], legal: ArrayLike | None) -> Choice:
    """Bars from the lowest to the highest value; an illegal choice has none."""
    allowed = np.ones(values.shape, np.bool_) if legal is None else np.asarray(legal)[0]
    low, high = values[allowed].min(), values[allowed].max()
    bars = 0.05 + 0.95 * (values - low) / max(high - low, 1e-9)
    texts = np.where(allowed, [f"{value:.2f}" for value in values], "-").tolist()
    return Choice(taken, np.where(allowed, bars, 0.0).tolist(), texts)
