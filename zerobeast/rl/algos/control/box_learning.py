"""Learning Q(s, a) of continuous actions from a replay, and a policy from Q: what DDPG, TD3 and SAC share.

    y = R + gamma^m (Q'(s', a') + bonus)        R: the m-step return; a' and the bonus: `next_actions`; Q': the critics'
                                                target network, or the critics themselves
    minimise sum_i mean 1/2 (Q_i(s, a) - y)^2   one step of the critics' optimiser, which trains the encoder too
    improve the policy by Q                     `improve`, at every `policy_delay`-th update

Critics may estimate distributions instead of means (`atoms`), whose distance to that of y is their cross-entropy. With
`net.norm batch`, (s, a) and (s', a') pass through the critics as one batch, whose statistics normalise both, as in
CrossQ (Bhatt et al. 2024, arXiv:1902.05605).

Actions are in units of their box throughout.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from zerobeast.rl.algos.control.box_control import BoxControl
from zerobeast.rl.algos.control.estimates import make_estimates
from zerobeast.rl.algos.control.networks import BoxPolicy, Critics
from zerobeast.rl.algos.control.reward_scale import EpisodeReturns, RewardScale
from zerobeast.rl.algos.policy_gradient.actor_critic import slice_steps
from zerobeast.rl.data import Rollouts
from zerobeast.rl.learning import GradientDescent, ReplayLearning, Target, UpdateResult, shape_rewards
from zerobeast.rl.nets.norms import adopt_statistics, batch_statistics
from zerobeast.rl.ops import ranks
from zerobeast.rl.ops.tree import tree_map
from zerobeast.rl.protocol import Learned, Metrics
from zerobeast.rl.replay.items import NStep, Transitions

N = TypeVar("N", bound=nn.Module)


class NextActions(NamedTuple):
    """What the policy does m steps later."""

    units: Tensor  #: [N, d]
    bonus: Tensor | float = 0.0  #: [N], what adds to their values


class BoxLearning(ReplayLearning[Transitions]):
    """See `zerobeast.rl.protocol.Learning`.

    Args:
      algorithm: provides the settings and the box.
      net: the policy that acts and is trained.
      n_critics: number of Q estimates.
    """

    optional = ("unmerged",)
    improvement: ClassVar[Sequence[str]] = ("policy_loss",)  #: names of the metrics of `improve`

    def __init__(self, algorithm: BoxControl[Any], net: BoxPolicy, n_critics: int) -> None:
        run, settings = algorithm.config, algorithm.settings
        shape = partial(shape_rewards, settings=settings)
        items = partial(NStep, n=settings.n_step, discount=settings.discount, shape=shape)
        super().__init__(run, algorithm.env, algorithm.policy, items, net.device)
        self._net, self._box, self._box_settings = net, algorithm.box, settings
        self._estimates, self._by_batch = make_estimates(settings), run.net.norm == "batch"
        n_in = net.vectors.out_size + algorithm.action_size
        self._critics = Critics(n_critics, n_in, run.net, self._estimates.atoms).to(net.device)
        #: None: there is none
        self._critics_target = self.follow_slowly(self._critics)
        self._critic_descent = GradientDescent(run, settings, [*self._critics.parameters(), *net.vectors.parameters()])
        self.parts |= {"critics": self._critics, "critics_target": self._critics_target}
        self.parts["critics_optimizer"] = self._critic_descent
        self._scale = RewardScale().to(net.device) if settings.normalize_returns else None
        self._returns = EpisodeReturns(settings.discount) if settings.normalize_returns else None
        self.parts |= {"reward_scale": self._scale, "episode_returns": self._returns}
        norm = net.vectors.norm
        #: statistics of this rank's observations since the last step; None: they are added at once, because it is alone
        self._unmerged = norm.apart() if norm is not None and ranks.size() > 1 else None
        self.parts["unmerged"] = self._unmerged
        self._updates = 0  #: of the critics
        #: metrics of the policy's last update
        self._improved: Metrics = {name: torch.zeros((), device=net.device) for name in self.improvement}

    def follow_slowly(self, source: N) -> Target[N] | None:
        """A target network of `source`; None if the settings have none."""
        settings = self._box_settings
        return Target(source, deepcopy(source), tau=settings.target_rate) if settings.target_network else None

    @abstractmethod
    def next_actions(self, features: Tensor) -> NextActions:
        """What targets value, given the features m steps later, [N, size]; called without gradient."""

    @abstractmethod
    def improve(self, features: Tensor, agent_steps: int) -> tuple[bool, Metrics]:
        """Improve the policy at `features` [N, size], which are constants.

        Returns:
          False if its loss or gradient was not finite, so that it did not change; and metrics of the same names.
        """

    def targets(self) -> Iterable[Target[Any] | None]:
        """What follows when the policy has been improved."""
        return (self._critics_target,)

    def add(self, rollouts: Rollouts, agent_steps: int) -> None:
        """Store rollouts, and add their observations and rewards once to the statistics that normalise them, if any."""
        super().add(rollouts, agent_steps)
        if (norm := self._unmerged or self._net.vectors.norm) is not None:
            norm.observe(slice_steps(rollouts.batch.obs, slice(-1)), rollouts.batch.away)
        if self._returns is not None:
            self._returns.observe(rollouts.batch, self._settings)

    def step(self, agent_steps: int) -> Learned:
        """As usual, with the statistics of all ranks: not all add as often as they take steps.

        The policy has changed only if at least one of these updates was of it, or its encoder learns too.
        """
        if self._unmerged is not None and self._net.vectors.norm is not None:
            self._net.vectors.norm.join(self._unmerged)
        if self._scale is not None and self._returns is not None:
            self._scale.join(self._returns)
        before = self._updates // self._box_settings.policy_delay
        learned = super().step(agent_steps)
        improved = self._updates // self._box_settings.policy_delay > before
        encodes = any(weights.requires_grad for weights in self._net.vectors.parameters())
        return learned if improved or encodes else learned._replace(changed=False)

    def update(self, batch: Transitions, weights: Tensor, agent_steps: int) -> UpdateResult:
        """One step of the critics and the encoder, then perhaps one of the policy."""
        reward = batch.reward if self._scale is None else self._scale(batch.reward)
        with self._critic_descent.autocast():
            features, later = self._encode(batch)
            with torch.no_grad():
                actions = self.next_actions(later)
            estimates, bootstrap = self._estimate(features, self._box.units(batch.action), later, actions.units)
            losses, errors = self._estimates.compare(estimates, bootstrap, actions.bonus, reward, batch.discount)
            loss = (weights * losses).mean(-1).sum()
        step = self._critic_descent.step(loss, agent_steps)
        metrics = {"critic_loss": loss.detach(), "q_mean": self._estimates.means(estimates.detach()).mean()}
        if step.applied:
            adopt_statistics(self._critics, self._net.vectors)
            applied = self._improve(features.detach(), agent_steps)
            step, metrics = step._replace(applied=applied), metrics | self._improved
        return UpdateResult(step, metrics, errors.mean(0), transitions=len(weights))

    def state(self) -> dict[str, Any]:
        """The training state besides the policy, for a checkpoint."""
        return {**super().state(), "updates": self._updates, "improved": self._improved}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        super().load(state)
        self._updates = state["updates"]
        self._improved = {name: value.to(self._net.device) for name, value in state["improved"].items()}

    def _improve(self, features: Tensor, agent_steps: int) -> bool:
        """Improve the policy if it is its turn; returns whether that was possible."""
        self._updates += 1
        if self._updates % self._box_settings.policy_delay:
            return True
        with batch_statistics(self._net.mlp):
            applied, self._improved = self.improve(features, agent_steps)
        if applied:
            adopt_statistics(self._net.mlp)
        for target in filter(None, self.targets()):
            target.count()
        return applied

    def _encode(self, batch: Transitions) -> tuple[Tensor, Tensor]:
        """The features [N, size] of the observations, and those of the ones m steps later, without gradient."""
        if not self._by_batch:
            features = self._net.encode(batch.inputs)
            with torch.no_grad():
                return features, self._net.encode(batch.next_inputs)
        both = tree_map(lambda now, later: torch.cat([now, later], 1), batch.inputs, batch.next_inputs)
        with batch_statistics(self._net.vectors):
            features, later = self._net.encode(both).chunk(2)
        return features, later.detach()

    def _estimate(self, features: Tensor, done: Tensor, later: Tensor, to_do: Tensor) -> tuple[Tensor, Tensor]:
        """Estimates [k, N(, K)] of what was done, and the least one [N(, K)] of what is to do, without gradient."""
        target = self._critics if self._critics_target is None else self._critics_target.copy
        if not self._by_batch:
            with torch.no_grad():
                bootstrap = self._estimates.least(target(later, to_do))
            return self._critics(features, done), bootstrap
        pairs = torch.cat([features, later]), torch.cat([done, to_do])
        with batch_statistics(self._critics, target):
            estimates, own_later = self._critics(*pairs).chunk(2, 1)
            with torch.no_grad():
                after = own_later if target is self._critics else target(*pairs).chunk(2, 1)[1]
        return estimates, self._estimates.least(after.detach())
