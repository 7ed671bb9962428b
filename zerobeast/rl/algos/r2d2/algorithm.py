"""R2D2: Q-learning of a recurrent network from replayed sequences, which begin with a stored recurrent state.

Targets, loss and priorities are those of Kapturowski et al. 2019, section 2.3:

    y_t = h(r_t + gamma r_{t+1} + ... + gamma^n h^-1(Q_target(x_{t+n}, argmax_a Q(x_{t+n}, a))))

M is the number of steps to learn from, L - burn_in of a sequence.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from zerobeast.rl.algos.policy_gradient.actor_critic import slice_steps
from zerobeast.rl.algos.r2d2.config import R2D2Config
from zerobeast.rl.algos.value.exploration import best_action, select_actions
from zerobeast.rl.algos.value.q_learning import QAlgorithm, ValueLearning
from zerobeast.rl.algos.value.q_network import QNetwork
from zerobeast.rl.algos.value.q_values import Scalars
from zerobeast.rl.learning import UpdateResult, shape_rewards
from zerobeast.rl.nets import StepInput
from zerobeast.rl.ops.losses import masked_reduce
from zerobeast.rl.ops.returns import n_step_returns, rescale, unrescale
from zerobeast.rl.ops.tree import tree_map
from zerobeast.rl.protocol import Metrics
from zerobeast.rl.replay.items import BurnIn, Sequences


class R2D2(QAlgorithm[R2D2Config]):
    """See `zerobeast.rl.protocol.Algorithm`."""

    clip_reward = False

    @property
    def values(self) -> Scalars:
        """One number per action; errors are squared."""
        return Scalars(math.inf)

    def action_values(self, net: QNetwork, inputs: StepInput, core: Tensor) -> Tensor:
        """See `QAlgorithm`; not on the network's scale."""
        values = super().action_values(net, inputs, core)
        return unrescale(values) if self.settings.value_rescaling else values

    def learning(self, net: QNetwork) -> R2D2Learning:
        """Learn from sequences of the replay."""
        return R2D2Learning(self, net)


class R2D2Learning(ValueLearning[Sequences]):
    """See `ValueLearning`: from sequences."""

    def __init__(self, algorithm: R2D2, net: QNetwork) -> None:
        self._config = settings = algorithm.settings
        items = partial(BurnIn, burn_in=settings.burn_in, length=settings.sequence_length)
        super().__init__(algorithm, net, items, partial(first_priorities, settings))

    def update(self, batch: Sequences, weights: Tensor, agent_steps: int) -> UpdateResult:
        """Take one optimiser step on the drawn items."""
        with self._descent.autocast():
            found = loss(self._config, self._net, self._target.copy, batch, weights)
        learned = tree_map(lambda entry: entry[:-1][batch.mask].unsqueeze(0), batch.inputs.obs)
        step = self.descend(found.total, learned, agent_steps)
        return UpdateResult(step, found.metrics, found.priorities, transitions=int(batch.mask.sum()))


class Loss(NamedTuple):
    """The loss of a batch."""

    total: Tensor  #: [], with gradient
    priorities: Tensor  #: [N], of its sequences
    metrics: Metrics


def loss(config: R2D2Config, net: QNetwork, target: QNetwork, batch: Sequences, weights: Tensor) -> Loss:
    """The mean over sequences of w sum_t (y_t - Q(x_t, a_t))^2 / 2: a sum over time, as in SEED.

    Args:
      config: of R2D2.
      net: the network to train.
      target: the network that values the actions chosen by `net`.
      batch: N sequences.
      weights: [N], of the sequences.
    """
    answers = unroll(net, batch)
    with torch.no_grad():
        aimed, action_mask = unroll(target, batch), batch.inputs.action_mask
        legal = None if action_mask is None else action_mask[batch.burn_in :]
        values = select_actions(aimed, best_action(answers if config.double else aimed, legal))
    mask, q = batch.mask[batch.burn_in :], select_actions(answers[:-1], batch.action[batch.burn_in :])
    aims = targets(config, batch, values, mask)
    errors = (aims - q).masked_fill(~mask, 0.0)
    total = (weights * 0.5 * errors.square().sum(0)).mean()
    sizes = errors.detach().abs()
    found = priorities(config, sizes, mask)
    metrics = {
        "total": total.detach(),
        "td_error": masked_reduce(sizes, mask, "mean"),
        "q": masked_reduce(q.detach(), mask, "mean"),
        "target": masked_reduce(aims, mask, "mean"),
        "priority": found.mean(),
        "valid_fraction": mask.float().mean(),
    }
    return Loss(total, found, metrics)


def unroll(net: QNetwork, batch: Sequences) -> Tensor:
    """Action values [M + 1, N, A], after a burn-in without gradient from the stored state."""
    core = batch.core_state
    if batch.burn_in and net.core_size:
        with torch.no_grad():
            _, core = net(slice_steps(batch.inputs, slice(batch.burn_in)), core)
        torch.clear_autocast_cache()  # torch before 2.10 would reuse weights that were cast without a graph
    answers: Tensor = net(slice_steps(batch.inputs, slice(batch.burn_in, None)), core)[0]
    return answers


def targets(config: R2D2Config, batch: Sequences, values: Tensor, mask: Tensor) -> Tensor:
    """y, [M, N]; n is smaller if the sequence or its episode ends earlier.

    Args:
      config: of R2D2.
      batch: N sequences; their observations are not used.
      values: [M + 1, N] on the network's scale, from the first observation to learn from onwards.
      mask: [M, N] bool, as `batch.mask`.
    """
    begin = batch.burn_in + 1  # the first transition's outcome arrived with the observation after it
    returns = n_step_returns(
        rewards=shape_rewards(batch.inputs.reward[begin:], config),
        discounts=(~batch.terminated[begin:]).float() * config.discount,
        values=unrescale(values) if config.value_rescaling else values,
        mask=mask,
        n=config.n_step,
    )
    return rescale(returns) if config.value_rescaling else returns


def priorities(config: R2D2Config, sizes: Tensor, mask: Tensor) -> Tensor:
    """eta max_t |error| + (1 - eta) mean_t |error|, [N].

    Args:
      config: of R2D2.
      sizes: [M, N], absolute errors.
      mask: [M, N] bool, True where an error is valid.
    """
    sizes = sizes.masked_fill(~mask, 0.0)
    mean = sizes.sum(0) / mask.sum(0).clamp(min=1)
    return config.priority_mix * sizes.amax(0) + (1 - config.priority_mix) * mean


def first_priorities(config: R2D2Config, batch: Sequences) -> Tensor:
    """[N]: the priorities that `loss` would give with the weights that acted, as their own target.

    The policy's answer to the observation after the last transition does not exist yet. So that transition is left out
    unless it terminated, and the sums of those before it end one step earlier.
    """
    q, highest = (batch.extras[name][batch.burn_in :] for name in ("q", "q_max"))
    mask = batch.mask[batch.burn_in :]
    more = torch.cat([mask[1:], torch.zeros_like(mask[:1])])
    mask = mask & (more | batch.terminated[batch.burn_in + 1 :])
    aims = targets(config, batch, torch.cat([highest, highest[-1:]]), mask)
    return priorities(config, (aims - q).abs(), mask)
