"""V-MPO with `kl_weight` 0: its divergence is measured, and that is all."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from tests.algo_fakes import REACH, VECTORS, algorithm_of, make_batch
from zerobeast.common.algos.dual import FLOOR
from zerobeast.common.algos.vmpo.loss import loss
from zerobeast.common.algos.vmpo.multipliers import Multipliers
from zerobeast.common.wire.specs import EnvSpec

pytestmark = pytest.mark.unit

ENVS = pytest.mark.parametrize("env", [VECTORS, REACH], ids=lambda env: env.env_id)


def outcome(env: EnvSpec, kl_weight: float) -> tuple[list[Tensor], Mapping[str, Tensor], Multipliers]:
    """The policy's gradient, the metrics, and the multipliers with theirs, all of one batch."""
    algorithm = algorithm_of("vmpo", env, kl_weight=kl_weight)
    net, duals = algorithm.network(), Multipliers(algorithm.config.vmpo, real=env is REACH)
    batch = make_batch(algorithm, resets=0.3)
    found = loss(algorithm.config.vmpo, algorithm.family, net, duals, batch, batch.behaviour_logits)
    gradient = torch.autograd.grad(found.policy, list(net.policy.parameters()))
    found.multipliers.backward()  # type: ignore[no-untyped-call]
    return list(gradient), found.metrics, duals


@ENVS
def test_the_policy_is_not_held_back(env: EnvSpec) -> None:
    without, *_ = outcome(env, 0.0)
    torch.testing.assert_close(without, outcome(env, 1e-30)[0])
    held = outcome(env, 1.0)[0]
    assert not any(torch.allclose(one, other) for one, other in zip(without, held, strict=True))


@ENVS
def test_the_divergence_is_measured_as_ever_and_has_no_weight(env: EnvSpec) -> None:
    _, without, duals = outcome(env, 0.0)
    _, metrics, _ = outcome(env, 1.0)
    names = ["kl_mean", "kl_std"] if env is REACH else ["kl"]
    assert metrics.keys() - without.keys() == {f"{name}_weight" for name in names}
    assert all(without[name] == metrics[name] > 0.01 for name in names)
    assert all(dual.value.grad is None for dual in duals.alphas.values())
    assert duals.eta.value.grad is not None


def test_updates_go_on_and_no_weight_grows() -> None:
    algorithm = algorithm_of("vmpo", kl_weight=0.0, kl_limit=1e-6)
    learning = algorithm.learning(algorithm.network())
    assert all(learning.update(make_batch(algorithm, seed=seed), 0).steps == 1 for seed in range(3))
    assert learning.state()["multipliers"]["kl.value"] <= FLOOR
