"""How V-MPO learns: which policy acts and which it is compared with, and its multipliers against their identities."""

import math
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.build.batches import PANEL, REACH, VECTORS, algorithm_of, generator, make_batch, on_policy
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.rl.algos.vmpo.algorithm import Multipliers
from zerobeast.rl.algos.vmpo.config import VMPOConfig
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


@pytest.mark.parametrize("settings", [{"learning_rate": 1e-9}, {"max_grad_norm": 1e-12}, {"optimizer": "rmsprop"}])
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


N = 9
EVEN = torch.zeros(N, dtype=torch.float64)  #: log w if all actions were drawn from the target


def multipliers(**settings: Any) -> Multipliers:
    return Multipliers(VMPOConfig(**settings), real=False).double()


def advantages() -> Tensor:
    return 3 * torch.randn(N, dtype=torch.float64, generator=generator())


def eta_gradient(duals: Multipliers, of: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(duals.temperature_loss(of, EVEN), duals.eta.value)
    return gradient


@pytest.mark.parametrize("eta", [0.05, 1.0, 20.0])
def test_the_temperature_learns_from_how_far_the_weights_are_from_uniform(eta: float) -> None:
    duals, of = multipliers(eta=eta, eta_limit=0.3), advantages()
    weights = duals.weights(of, EVEN)
    divergence = torch.xlogy(weights, weights * N).sum()
    torch.testing.assert_close(eta_gradient(duals, of), 0.3 - divergence, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("eta", [1e-8, 1e-3])
def test_a_temperature_near_its_floor_still_has_a_finite_gradient_in_float32(eta: float) -> None:
    duals = Multipliers(VMPOConfig(eta=eta), real=False)
    gradient = eta_gradient(duals, 1e4 * advantages().float())
    assert gradient.item() == pytest.approx(0.1 - math.log(N), rel=1e-3)


def test_an_action_of_half_the_weight_counts_as_half_an_action() -> None:
    """Drawing every other action twice, at half its weight, leaves the sample the same; so does halving all weights."""
    duals, of = multipliers(eta=0.7, eta_limit=0.3), advantages()
    plain = duals.weights(of, EVEN)
    for scale in (1.0, 0.5):
        twice = torch.cat([of, of[::2]])
        halved = torch.full_like(of, scale)
        halved[::2] /= 2
        weights = torch.cat([halved, halved[::2]])
        psi = duals.weights(twice, weights.log())
        merged = psi[:N].clone()
        merged[::2] += psi[N:]
        torch.testing.assert_close(merged, plain)
        torch.testing.assert_close(duals.temperature_loss(twice, weights.log()), duals.temperature_loss(of, EVEN))
