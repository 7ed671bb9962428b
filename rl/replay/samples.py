"""What a replay returns to learn from: transitions over n steps, or sequences with a burn-in."""

from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from zerobeast.rl.nets import StepInput

S = TypeVar("S", bound=tuple[Any, ...])


class Transitions(NamedTuple):
    """N transitions of m steps each: m is n, or less if the episode ends first."""

    inputs: StepInput  #: [1, N, ...] of the step in which the action was taken
    action: Any  #: [N, *action shape], or a tree of such
    reward: Tensor  #: [N] float32, the discounted sum of m rewards, each scaled and clipped first
    discount: Tensor  #: [N] float32, gamma^m; 0 if the episode terminated
    next_inputs: StepInput  #: [1, N, ...] m steps later; for a truncated episode, its last observation
    extras: dict[str, Tensor]  #: [N, *shape] each: what the behaviour policy answered besides the action
    next_extras: dict[str, Tensor]  #: [N, *shape] each: the same m steps later


class Sequences(NamedTuple):
    """N sequences of L steps and the step after them, time-major; the first `burn_in` steps warm up the memory."""

    inputs: StepInput  #: [L + 1, N, ...]; rewards unclipped, each with the observation that it arrived with
    action: Any  #: [L, N, *action shape], or a tree of such
    terminated: Tensor  #: [L + 1, N] bool
    extras: dict[str, Tensor]  #: [L, N, *shape] each
    core_state: Tensor  #: [N, core_size] before step 0
    mask: Tensor  #: [L, N] bool, True for the transitions to learn from: after the burn-in, all of one episode
    burn_in: int


class Drawn(NamedTuple, Generic[S]):
    """A sample of a replay."""

    batch: S
    ids: NDArray[np.int64]  #: [N] of the items drawn, for `Replay.update`
    #: [N] float32, importance weights (N_items P(i))^-beta divided by their largest (Schaul et al. 2016, section 3.4);
    #: 1 if all items have equal chances
    weights: Tensor
