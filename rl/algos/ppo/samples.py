"""The samples of PPO's epochs, and how they are split into minibatches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zerobeast.rl.nets import StepInput
from zerobeast.rl.ops.tree import tree_map


class Samples(NamedTuple):
    """S sequences of T steps, computed once per batch, without gradient."""

    inputs: StepInput  #: [T, S, ...] each, what the network sees
    actions: Any  #: [T, S, *action shape] that were taken, or a tree of such
    behaviour: Tensor  #: [T, S] their log-probabilities under the policy that acted
    logits: Tensor  #: [T, S, A] of the policy before the batch
    values: Tensor  #: [T, S] of the same policy
    targets: Tensor  #: [T, S] for the values
    advantages: Tensor  #: [T, S] of the actions, normalised over the batch if the settings say so
    mask: Tensor  #: [T, S] bool, True where a step is valid
    core_state: Tensor  #: [S, core_size] before step 0

    def single_steps(self) -> Samples:
        """Every step as a sequence of its own, which makes no difference to a network without memory."""
        entries: Samples = tree_map(lambda entry: entry.flatten(0, 1).unsqueeze(0), self._replace(core_state=self.mask))
        return entries._replace(core_state=self.core_state.new_zeros(self.mask.numel(), 0))

    def pick(self, index: Tensor) -> Samples:
        """The sequences at these indices [n]."""
        picked: Samples = tree_map(lambda entry: entry[:, index], self._replace(core_state=self.mask))
        return picked._replace(core_state=self.core_state[index])

    def minibatches(self, n: int) -> Iterator[Samples]:
        """n random parts, as equal in size as possible: every sequence with a valid step is in one of them."""
        valid = self.mask.any(0).nonzero().squeeze(-1)
        order = torch.randperm(len(valid)).to(valid.device)
        yield from (self.pick(index) for index in valid[order].tensor_split(n) if len(index))
