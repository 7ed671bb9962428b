"""IMPALA's behaviour: draw from the policy."""

from __future__ import annotations

import torch
from torch import Tensor

from common.algos.protocol import Act
from common.nets.agent import AgentNet, StepInput
from common.ops import categorical


@torch.inference_mode()
def act(
    net: AgentNet, inputs: StepInput, core: Tensor, *, generator: torch.Generator, greedy: bool
) -> tuple[Act, Tensor]:
    """One step of B environments; shapes as in `common.algos.protocol.Algorithm.act`."""
    (logits, value), core = net(inputs, core)
    logits, value = logits[0], value[0]
    action = logits.argmax(-1) if greedy else categorical.sample(logits, generator)
    return Act(action, logits, value), core
