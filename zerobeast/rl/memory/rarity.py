"""How rare each entry of the familiarity buffer is. Any package can bring a signal (`net.memory`):

    def oldest(familiar: Familiar) -> Tensor:           # [n], larger for what is rarer
        return -familiar.versions.float()

Its rules are `zerobeast.testing.memory`.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from zerobeast.common import plugins
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings.net import MEMORIES

NEIGHBOURS = 10
ROWS = 1024  #: of distances at once, which bounds their memory


class Familiar(NamedTuple):
    """What is known of the n entries of the familiarity buffer, oldest first; on the CPU."""

    losses: Tensor  #: [n] float32, the moving average of each one's contrastive losses
    keys: Tensor  #: [n, K] float32, of length 1
    td_errors: Tensor  #: [n] float32 >= 0, by the values computed when acting
    returns: Tensor  #: [n] float32, the discounted rewards of the rest of the rollout, up to the episode's end
    versions: Tensor  #: [n] int64, the policy_version of the step


Signal = Callable[[Familiar], Tensor]


def momentum(familiar: Familiar) -> Tensor:
    """What the encoder still confuses after several epochs is rare (Zhou et al. 2022, section 3.2)."""
    return familiar.losses


def knn(familiar: Familiar) -> Tensor:
    """Mean distance to the 10 nearest other keys: what has few neighbours is rare."""
    keys = familiar.keys
    nearest = min(NEIGHBOURS + 1, len(keys))  # each is its own nearest, at a distance of 0
    found = [torch.cdist(rows, keys).topk(nearest, largest=False).values for rows in torch.split(keys, ROWS)]
    return torch.cat(found).sum(-1) / (nearest - 1)


def td_error(familiar: Familiar) -> Tensor:
    """What the value function predicts badly, as in prioritised replay (Schaul et al. 2016)."""
    return familiar.td_errors


def uniform(familiar: Familiar) -> Tensor:
    """Random numbers: the control."""
    return torch.rand(len(familiar.losses))


def signal_of(memory: str) -> Signal:
    """The signal that `net.memory` names.

    Raises:
      ConfigError: it is unknown, cannot be imported, or is no function.
    """
    signal: Signal = plugins.find_part(MEMORIES, memory, "net.memory")
    if not callable(signal):
        raise ConfigError(path="net.memory", value=memory, expected=f"a function, got {type(signal).__name__}")
    return signal


def priorities(scores: Tensor) -> Tensor:
    """[n] scores -> [n] in [0, 1], 0.5 at their mean: (1 + z / max |z|) / 2 of standard scores z (Zhou et al. 2022)."""
    centred = scores.double() - scores.double().mean()
    largest = centred.abs().max()  # dividing by the deviation as well would cancel
    return (0.5 * centred / largest + 0.5).float() if largest > 0 else torch.full_like(scores, 0.5)
