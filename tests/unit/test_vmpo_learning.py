"""How V-MPO learns: which policy acts, which it is compared with, its multipliers, and what changes nothing."""

import math
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.build.batches import PANEL, REACH, VECTORS, B, T, algorithm_of, make_batch, on_policy, unrolled
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.rl.algos.policy_gradient.policy_and_value import Answer, PolicyAndValue
from zerobeast.rl.learning.dual import FLOOR
from zerobeast.rl.nets.network import StepInput
from zerobeast.rl.nets.popart import PopArt
from zerobeast.rl.nets.weights import flatten

vmpo = partial(algorithm_of, "vmpo", learning_rate=0.01, target_period=3)


@pytest.mark.parametrize("env", [VECTORS, PANEL, REACH], ids=lambda env: env.env_id)
def test_a_rollout_of_the_previous_target_is_weighted_and_compared_with_the_current_one(env: EnvSpec) -> None:
    algorithm = vmpo(env, target_period=1, learning_rate=0.1)
    net = algorithm.network()
    learning = algorithm.learning(net)
    old = make_batch(algorithm, seed=2)
    old = on_policy(net, old)
    learning.update(on_policy(net, make_batch(algorithm)), 0)
    now = on_policy(net, old)._replace(policy_version=old.policy_version + 1)
    before = algorithm.family.of(old.extras["logits"]).kl(algorithm.family.of(now.extras["logits"])).mean().item()
    assert before > 1e-3, "there is something to see"
    state, found = deepcopy(learning.state()), {}
    for name, batch in (("old", old), ("now", now)):
        again = algorithm.learning(deepcopy(net))
        again.load(state)
        found[name] = again.update(batch, 0).metrics
        divergences = [value.item() for key, value in found[name].items() if key in ("kl", "kl_mean", "kl_std")]
        assert divergences == pytest.approx([0.0] * len(divergences), abs=1e-6)
    assert found["old"]["behaviour_kl"].item() == pytest.approx(before, rel=1e-3)
    assert found["now"]["behaviour_kl"].item() == pytest.approx(0.0, abs=1e-6)
    assert found["old"]["pg_loss"] != found["now"]["pg_loss"]


def test_only_rollouts_of_other_versions_are_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = vmpo()
    net, asked, forward = algorithm.network(), list[int](), PolicyAndValue.forward
    learning = algorithm.learning(net)

    def counted(self: PolicyAndValue, inputs: StepInput, *others: Tensor) -> tuple[Answer, Tensor]:
        if self is net:
            asked.append(inputs.obs.shape[1])
        return forward(self, inputs, *others)

    batch = on_policy(net, make_batch(algorithm))
    version = batch.policy_version.clone()
    version[3:, 1] = 7
    monkeypatch.setattr(PolicyAndValue, "forward", counted)
    learning.update(batch, 0)
    assert asked == []
    learning.update(batch._replace(policy_version=version), 0)
    assert asked == [1]


def test_a_batch_without_valid_transitions_changes_nothing_and_one_with_a_single_one_counts() -> None:
    algorithm = vmpo()
    batch = make_batch(algorithm)._replace(mask=torch.zeros(T, B, dtype=torch.bool))
    learning = algorithm.learning(algorithm.network())
    assert learning.update(batch, 0)[:3] == (0, 0, False)
    batch.mask[2, 1] = True
    assert learning.update(batch, 0)[:3] == (1, 0, False)


@pytest.mark.parametrize("popart", [False, True])
def test_the_policy_that_acts_follows_every_period_and_the_divergence_is_then_zero(*, popart: bool) -> None:
    algorithm = vmpo(net={"normalize_obs": True}, popart=popart)
    net = algorithm.network()
    learning, first, changes, divergences = algorithm.learning(net), flatten(net).tobytes(), [], []
    for seed in range(7):
        batch = on_policy(net, make_batch(algorithm, seed=seed, resets=0.2))
        learned = learning.update(batch, 0)
        changes.append(learned.changed)
        divergences.append(learned.metrics["kl"].item())
        assert (flatten(net).tobytes() == first) == (seed < 2)
    assert changes == [False, False, True, False, False, True, False]
    assert [divergence < 1e-6 for divergence in divergences] == [True, False, False] * 2 + [True]


def test_multipliers_stay_positive_whatever_the_rate() -> None:
    algorithm = vmpo(REACH, multiplier_rate=3.0, eta_limit=50.0, kl_mean_limit=50.0, kl_std_limit=50.0)
    net = algorithm.network()
    learning = algorithm.learning(net)
    for seed in range(4):
        learning.update(on_policy(net, make_batch(algorithm, seed=seed)), 0)
    values = learning.state()["multipliers"]
    assert list(values) == ["eta.value", "kl_mean.value", "kl_std.value"]
    assert all(value.item() == pytest.approx(FLOOR) for value in values.values())


@pytest.mark.parametrize("settings", [{}, {"learning_rate": 1e-9}, {"max_grad_norm": 1e-12}, {"optimizer": "rmsprop"}])
def test_multipliers_have_a_learning_rate_of_their_own(settings: dict[str, Any]) -> None:
    limits = {"kl_limit": 1e-4, "eta_limit": 5.0}  # above the first limit and below the second
    pace = {"multiplier_rate": 0.02, "schedule": "linear", "target_period": 10}
    algorithm = algorithm_of("vmpo", **{**limits, **pace, **settings})
    learning = algorithm.learning(algorithm.network())
    for _ in range(5):
        learning.update(make_batch(algorithm), agent_steps=999)  # of 1000, so the policy's rate is nearly 0
    values = learning.state()["multipliers"]
    assert values["kl.value"].item() == pytest.approx(1.0 + 5 * 0.02, abs=1e-3)
    assert values["eta.value"].item() == pytest.approx(1.0 - 5 * 0.02, abs=1e-3)


def test_a_step_that_is_not_finite_changes_nothing() -> None:
    algorithm = vmpo(popart=True, target_period=1)
    net, batch = algorithm.network(), make_batch(algorithm)
    learning, before = algorithm.learning(net), flatten(net).tobytes()
    batch.extras["logits"][2, 1] = math.nan
    assert learning.update(batch, 0)[:3] == (0, 1, False)
    assert flatten(net).tobytes() == before
    assert learning.state()["multipliers"]["eta.value"] == 1.0
    assert learning.update(make_batch(algorithm), 0)[:3] == (1, 0, True)


def test_with_popart_losses_are_small_and_values_in_units_of_rewards() -> None:
    algorithm = vmpo(popart=True, discount=0.0, target_period=60, learning_rate=0.05)
    net = algorithm.network()
    assert isinstance(net.value, PopArt)
    batch = make_batch(algorithm)
    batch = batch._replace(reward=batch.reward.clamp(-1, 1) * 1000 + 5000)
    for _ in range(50):
        net.value.observe(batch.reward[1:].flatten().repeat(100))
    assert net.value.mean.item() == pytest.approx(5000, rel=0.1)
    assert unrolled(net, batch)[1].abs().max() < 10, "what it says has not changed"
    learning = algorithm.learning(net)
    losses = [learning.update(batch, 0).metrics["baseline_loss"].item() for _ in range(60)]
    assert losses[0] == pytest.approx(((batch.reward[1:] / net.value.scale).square() / 2).mean().item(), rel=0.1)
    assert losses[-1] < 1.0
    assert unrolled(net, batch)[1].mean().item() == pytest.approx(5000, rel=0.2)


@pytest.mark.parametrize("env", [VECTORS, REACH], ids=lambda env: env.env_id)
def test_actions_with_high_rewards_become_likelier(env: EnvSpec) -> None:
    algorithm = vmpo(env, discount=0.0, target_period=1)
    net, batch = algorithm.network(), make_batch(algorithm)
    batch = on_policy(net, batch)
    batch.reward[1:] = torch.linspace(-3, 3, T * B).view(T, B)
    learning = algorithm.learning(net)

    def log_probs() -> Tensor:
        found: Tensor = algorithm.family.of(unrolled(net, batch)[0][:-1]).log_prob(batch.last_action[1:])
        return found

    before = log_probs()
    for _ in range(20):
        learning.update(batch, 0)
    assert (log_probs() - before)[-1].mean() > 0.01


def test_without_a_penalty_updates_go_on_and_no_weight_grows() -> None:
    algorithm = algorithm_of("vmpo", kl_weight=0.0, kl_limit=1e-6)
    learning = algorithm.learning(algorithm.network())
    assert all(learning.update(make_batch(algorithm, seed=seed), 0).steps == 1 for seed in range(3))
    assert learning.state()["multipliers"]["kl.value"] <= FLOOR
