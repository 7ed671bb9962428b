"""A signal of rarity, as a user would write one."""

from torch import Tensor

from zerobeast.rl.memory.rarity import Familiar


def newest(familiar: Familiar) -> Tensor:
    return familiar.versions.float()
