"""A policy that stores its last observation, and a learner that checks what it gets: any mix-up ends their service.

It is an algorithm for the environment in `env`. The recurrent state is the observation that the policy got
last. It has to be the one before the newest: the same environment, the same episode, one step earlier. What the policy
answers follows from the observation alone, so the learner can check every entry of every rollout.
"""

import torch
from torch import Tensor

from zerobeast.common.errors import BeastError
from zerobeast.common.settings import RunConfig
from zerobeast.common.wire import EnvSpec, PolicySpec
from zerobeast.rl.algos.impala.algorithm import Impala
from zerobeast.rl.algos.policy_gradient.actor_critic import logits_and_value
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.data import Batch
from zerobeast.rl.nets import StepInput
from zerobeast.rl.protocol import Act, Metrics, Sampling
from zerobeast_tools.chaos.witness.env import ACTIONS, reward_of, right_action

STATE_SIZE = 3  #: size of the recurrent state: the last observation
DECAY = 1e-4  #: of the weights, which serve only to be published


class MixedUp(BeastError):
    """A message reached a process that it was not meant for."""


class Witness(Impala):
    """See `zerobeast.rl.protocol.Algorithm`.

    Args:
      config: of the run.
      env: that of `zerobeast_tools.chaos.witness.env`.
    """

    def __init__(self, config: RunConfig, env: EnvSpec) -> None:
        super().__init__(config, env)
        self.policy = PolicySpec(logits_and_value(ACTIONS), STATE_SIZE)

    def act(self, net: PolicyAndValue, inputs: StepInput, core: Tensor, sampling: Sampling) -> tuple[Act, Tensor]:
        """Give the only right answers. Raises Mixed if the recurrent state is another environment's."""
        del net, sampling
        obs, first = inputs.obs[0].float(), inputs.first[0]
        empty = obs[:, 0] == 0  # a broker tries its network on an empty observation
        check_all(
            empty | first | (obs == next_observation(core)).all(-1), "the policy's memory is another one's", core, obs
        )
        return Act(right_action(*obs.long().unbind(-1)), {"logits": logits_of(obs), "value": obs[:, 2]}), obs.clone()

    def loss(self, net: PolicyAndValue, batch: Batch) -> tuple[Tensor, Metrics]:
        """The size of the weights. Raises Mixed if a rollout is inconsistent."""
        check(batch)
        loss = DECAY * torch.stack([weights.square().sum() for weights in net.parameters()]).sum()
        return loss, {"checked": batch.mask.sum().float()}


def check(batch: Batch) -> None:
    """Check every entry of a batch of rollouts against what the environment shows and the policy answers."""
    obs, first = batch.obs, batch.first
    here, there, opens = obs[:-1], obs[1:], first[1:]
    check_all(
        opens | (there == next_observation(here)).all(-1),
        "an observation does not follow the one before it",
        here,
        there,
    )
    check_all(~opens | (there[..., 2] == 0), "an episode opens in its middle", here, there)
    taken = batch.last_action[1:] == right_action(*here.long().unbind(-1))
    check_all(opens | taken, "an action does not belong to its observation", here, batch.last_action[1:])
    paid = batch.reward[1:] == reward_of(there[..., 0], there[..., 2])
    check_all(opens | paid, "a reward does not belong to its step", there, batch.reward[1:])
    logits, value = batch.extras["logits"], batch.extras["value"]
    answered = (logits == logits_of(here)).all(-1) & (value == here[..., 2])
    check_all(answered, "an answer does not belong to its observation", here, logits)
    remembered = torch.where(first[0, :, None], 0.0, obs[0] - torch.tensor([0.0, 0.0, 1.0]))
    check_all((batch.core_state == remembered).all(-1), "the stored memory is another one's", obs[0], batch.core_state)


def next_observation(obs: Tensor) -> Tensor:
    """The observation that follows within an episode."""
    return obs + torch.tensor([0.0, 0.0, 1.0])


def logits_of(obs: Tensor) -> Tensor:
    """[..., ACTIONS] logits that repeat the observation."""
    return torch.nn.functional.pad(obs, (0, ACTIONS - STATE_SIZE))


def check_all(good: Tensor, sentence: str, *seen: Tensor) -> None:
    """Raise Mixed with the values at the first place that is not good."""
    if bool(good.all()):
        return
    place = tuple((~good).nonzero()[0].tolist())
    raise MixedUp(f"{sentence}: " + "; ".join(str(values[place].tolist()) for values in seen))
