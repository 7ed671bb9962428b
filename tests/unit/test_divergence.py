"""How far a policy is from the one that acted, for every algorithm."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.build.batches import MINATAR, REACH, VECTORS, B, T, algorithm_of, make_batch, unrolled
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.rl.algos.policy_gradient.actor_critic import steps
from zerobeast.rl.data.batch import Batch
from zerobeast.rl.protocol import Sampling
from zerobeast.services.learner.update import acting_dtype, divergences
from zerobeast.testing.scenes import stirred

RULE = "adaptive 0.1"


def acted_in(algorithm: Any, net: Any, batch: Batch) -> Batch:
    """The same batch, as if `net` had acted in it, step by step."""
    core, answers = batch.core_state, []
    for t in range(T):
        sampling = Sampling(torch.arange(B), torch.Generator().manual_seed(t), greedy=False)
        act, core = algorithm.act(net, steps(batch.inputs, slice(t, t + 1)), core, sampling)
        answers.append(act.extras)
    return batch._replace(extras={name: torch.stack([answer[name] for answer in answers]) for name in answers[0]})


@pytest.mark.parametrize(("name", "env"), [("impala", VECTORS), ("r2d2", VECTORS), ("sac", REACH)])
def test_the_divergence_is_0_for_equal_weights_in_the_format_of_brokers(name: str, env: EnvSpec) -> None:
    algorithm = algorithm_of(name, env, sync=RULE)
    net = stirred(algorithm.network(), 0.1)  # at first all actions have nearly the same value
    acting = deepcopy(net)
    acting.lower(torch.bfloat16)
    batch = acted_in(algorithm, acting, make_batch(algorithm, resets=0.2))
    batch = batch._replace(mask=torch.ones_like(batch.mask))
    same = divergences(algorithm, net, batch, torch.bfloat16)
    assert same.shape == (B, T)
    np.testing.assert_allclose(same, 0, atol=1e-6)
    assert divergences(algorithm, stirred(net, 1.0), batch, torch.bfloat16).mean() > 0.01


def test_a_learner_on_a_gpu_measures_in_the_format_of_brokers_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zerobeast.rl.nets.precision.fast_bfloat16", lambda device: device.type == "cuda")
    formats = [
        acting_dtype(RunConfig.model_validate({"broker": {"device": device}, "learner": {"device": "cuda"}}), gpu)
        for device, gpu in (("auto", torch.device("cuda")), ("cpu", torch.device("cuda")))
    ]
    assert formats == [torch.bfloat16, torch.float32]


@pytest.mark.parametrize("use_lstm", [False, True])
def test_the_divergence_of_an_actor_critic_is_the_kl_on_the_same_observations(*, use_lstm: bool) -> None:
    algorithm = algorithm_of("impala", MINATAR, net={"use_lstm": use_lstm}, sync=RULE)
    net = algorithm.network()
    batch = acted_in(algorithm, net, make_batch(algorithm, resets=0.2))
    torch.testing.assert_close(batch.extras["value"], unrolled(net, batch)[1][:-1], rtol=1e-4, atol=1e-5)
    found = algorithm.divergence(stirred(net, 0.05), batch)
    p, q = (extras.softmax(-1) for extras in (batch.extras["logits"], acted_in(algorithm, net, batch).extras["logits"]))
    expected: Tensor = (p * (p / q).log()).sum(-1)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_rollouts_carry_what_the_divergence_needs_only_if_the_sync_rule_uses_it() -> None:
    for name, env in (("dqn", VECTORS), ("sac", REACH)):
        assert [field.name for field in algorithm_of(name, env).policy.extras] == []
        assert [field.name for field in algorithm_of(name, env, sync=RULE).policy.extras] == ["best"]
