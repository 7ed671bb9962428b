"""A fault planted in an algorithm breaks the rule of the interface that it is against; the error names that rule."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.algos.ppo.algorithm import PPO, PPOLearning
from zerobeast.rl.algos.sac.algorithm import SACLearning
from zerobeast.rl.data import Batch, Rollouts
from zerobeast.rl.nets import StepInput
from zerobeast.rl.ops import ranks
from zerobeast.rl.protocol import Act, Learned, Sampling
from zerobeast.testing import algorithm
from zerobeast.testing.rules import BrokenRule

pytestmark = pytest.mark.slow
RULES = {rule.name: rule for rule in algorithm.RULES}


def unchanged(given: Any) -> Any:
    return given


def faulty(base: type[Any], **methods: Any) -> type[Any]:
    """One with these methods in place of its own."""
    return type("Faulty", (base,), methods)


def acting(
    sees: Callable[[StepInput], StepInput] = unchanged,
    draws: Callable[[Sampling], Sampling] = unchanged,
    says: Callable[[Act], Act] = unchanged,
) -> type[PPO]:
    """PPO that acts with these changes to what it is given and to what it answers."""

    class Acting(PPO):
        def act(self, net: PolicyAndValue, inputs: StepInput, core: Tensor, sampling: Sampling) -> tuple[Act, Tensor]:
            act, after = super().act(net, sees(inputs), core, draws(sampling))
            return says(act), after

    return Acting


def learning(
    sees: Callable[[Batch], Batch] = unchanged, tells: Callable[[Learned], Learned] = unchanged
) -> type[PPOLearning]:
    """PPO that learns with these changes to what it is given and to what it reports."""

    class Learning(PPOLearning):
        def update(self, batch: Batch, agent_steps: int) -> Learned:
            return tells(super().update(sees(batch), agent_steps))

    return Learning


class NetworkOfItsOwn(PPO):
    def network(self) -> PolicyAndValue:
        net = super().network()
        net.policy.weight.data += torch.rand(())
        return net


class GoingItsOwnWay(PPOLearning):
    def update(self, batch: Batch, agent_steps: int) -> Learned:
        learned = super().update(batch, agent_steps)
        self.net.policy.weight.data += ranks.rank()
        return learned


class StoringLate(SACLearning):
    late: Rollouts | None = None

    def add(self, rollouts: Rollouts, agent_steps: int) -> None:
        if self.late is not None:
            super().add(self.late, agent_steps)
        self.late = rollouts


def with_gradient(act: Act) -> Act:
    return act._replace(extras={name: extra.clone().requires_grad_() for name, extra in act.extras.items()})


def seeded_elsewhere(sampling: Sampling) -> Sampling:
    return sampling._replace(generator=torch.Generator().manual_seed(int(torch.randint(99, ()))))


def renamed(learned: Learned) -> Learned:
    return learned._replace(metrics={f"{name} {learned.loss}": metric for name, metric in learned.metrics.items()})


FAULTS: list[tuple[type[Any], str]] = [
    (NetworkOfItsOwn, "the network is the same on every call"),
    (acting(says=with_gradient), "acting has no gradient"),
    (acting(says=lambda act: act._replace(extras={})), "acting answers what the policy declares"),
    (acting(sees=lambda inputs: inputs._replace(action_mask=None)), "illegal actions are never chosen"),
    (acting(sees=lambda inputs: inputs._replace(first=inputs.first & False)), "an episode begins without memory"),
    (
        acting(sees=lambda inputs: inputs._replace(reward=inputs.reward * 0 + inputs.reward.mean())),
        "rows are acted for on their own",
    ),
    (acting(draws=lambda sampling: sampling._replace(greedy=False)), "greedy acting is deterministic"),
    (acting(draws=seeded_elsewhere), "acting draws from its generator alone"),
    (faulty(PPO, divergence=lambda *given: PPO.divergence(*given) + 1), "divergence is zero for the policy that acted"),
    (faulty(PPO, act=lambda *given: (PPO.act(*given)[0], given[3])), "memory works or is refused"),
    (
        faulty(PPOLearning, credit=property(lambda self: "after_step" if self.due else "after_store")),
        "credit never changes",
    ),
    (
        faulty(SACLearning, recover_rows=lambda self: SACLearning.recover_rows(self)[:0]),
        "stored rows outlive the process",
    ),
    (faulty(PPOLearning, due=True), "steps come due and end"),
    (learning(lambda batch: batch._replace(mask=batch.mask | True)), "void transitions are not learned from"),
    (learning(lambda batch: batch._replace(mask=~batch.first[1:])), "steps beyond the budget are not learned from"),
    (
        learning(lambda batch: batch._replace(terminated=batch.terminated | batch.truncated)),
        "only a truncated end has a future",
    ),
    (learning(lambda batch: batch._replace(terminated=batch.terminated & False)), "only a truncated end has a future"),
    (faulty(PPOLearning, load=lambda *_: None), "training continues bit for bit"),
    (StoringLate, "the memory of rollouts may be used again"),
    (learning(tells=lambda learned: learned._replace(steps=1, skipped=0)), "what is not finite is skipped"),
    (
        learning(tells=lambda learned: learned._replace(changed=False)),
        "changed says whether the policy that acts has changed",
    ),
    (learning(tells=renamed), "metrics keep their names"),
    (GoingItsOwnWay, "ranks keep the same weights"),
    (learning(lambda batch: batch._replace(reward=-batch.reward)), "it learns"),
]


@pytest.mark.parametrize(("fault", "name"), FAULTS)
def test_a_fault_breaks_its_rule(fault: type[Any], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = fault.__bases__[0]
    monkeypatch.setattr(sys.modules[sound.__module__], sound.__name__, fault)
    with pytest.raises(BrokenRule) as broken:
        RULES[name]("sac" if sound is SACLearning else "ppo")
    assert str(broken.value).startswith(f"{name}: ")


def test_every_rule_has_a_fault_that_breaks_it() -> None:
    assert RULES.keys() - {name for _, name in FAULTS} == {"what it cannot learn is refused"}, "which is not up to it"
