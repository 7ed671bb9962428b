"""What actor-critic algorithms share, and how far the policy of any algorithm is from the one that acted."""

import math
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.build.batches import ALGORITHMS, NESTED, PANEL, REACH, VECTORS, B, T, algorithm_of, make_batch, on_policy
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.rl.algos.policy_gradient.actor_critic import slice_steps, unroll
from zerobeast.rl.data.batch import Batch
from zerobeast.rl.nets.actions import OneHots
from zerobeast.rl.ops.tree import tree_map
from zerobeast.rl.protocol import Sampling
from zerobeast.rl.settings import ActorCriticSettings
from zerobeast.services.learner.update import acting_dtype, divergences
from zerobeast.testing.scenes import perturb

ACTOR_CRITICS = [name for name, section in ALGORITHMS.items() if issubclass(section, ActorCriticSettings)]

ACTIONS = [
    pytest.param(PANEL, {}, id="several choices"),
    pytest.param(REACH, {"action_std": "state"}, id="a deviation for each state"),
    pytest.param(REACH, {"squash_actions": True}, id="squashed actions"),
    pytest.param(NESTED, {}, id="several parts and a mask"),
]
#: settings with which an algorithm changes its policy after every batch
PROMPT: dict[str, dict[str, Any]] = {
    "vmpo": {"target_period": 1, "popart": True},
    "impact": {"batches": 1, "uses": 1, "kl_cost": 1.0},
}


OF_POLICIES = {"pg_loss", "entropy", "behaviour_kl", "rho_clipped_mean", "kl", "clipped", "entropy_cost", "eta"}


def forced(batch: Batch, env: EnvSpec) -> Batch:
    """The same steps, in each of which the action taken was the only one."""
    taken = tree_map(lambda entry: entry.roll(-1, 0), batch.last_action)
    (sizes,) = (array.choices for array in env.action.arrays)
    return batch._replace(action_mask=OneHots(sizes)(taken) > 0)


@pytest.mark.parametrize("env", [VECTORS, PANEL], ids=lambda env: env.env_id)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", ACTOR_CRITICS)
def test_steps_without_a_choice_count_for_values_alone(name: str, reduction: str, env: EnvSpec) -> None:
    env = replace(env, action_mask=True)
    own: dict[str, Any] = {"ppo": {"minibatches": 1, "epochs": 1}, "impala": {"entropy_target": 0.5}}.get(name, {})
    fields, wanted = ALGORITHMS[name].model_fields, {"reduction": reduction, "normalize_advantages": True}
    own |= PROMPT.get(name, {}) | {field: value for field, value in wanted.items() if field in fields}
    algorithm = algorithm_of(name, env, **own)
    batch, other = (make_batch(algorithm, resets=0.2, seed=seed, rows=B // 2) for seed in (1, 2))
    batch.action_mask[:] = True  # type: ignore[index]

    def metrics(batch: Batch) -> dict[str, float]:
        found = algorithm.learning(algorithm.network()).update(batch, 0).metrics
        return {key: float(value) for key, value in found.items()}

    alone, both = metrics(batch), metrics(Batch.join([batch, forced(other, env)]))
    names = OF_POLICIES & alone.keys()
    assert {key: both[key] for key in names} == pytest.approx({key: alone[key] for key in names}, rel=1e-4)
    assert both["baseline_loss"] != pytest.approx(alone["baseline_loss"], rel=1e-3)
    nothing = algorithm.learning(algorithm.network()).update(forced(other, env), 0)
    assert all(map(math.isfinite, (nothing.loss, *map(float, nothing.metrics.values()))))


def test_only_steps_with_a_choice_decide_which_policies_are_old() -> None:
    algorithm = algorithm_of("impala", replace(VECTORS, action_mask=True), sync="adaptive 0.1")
    batch = forced(make_batch(algorithm), VECTORS)
    batch.action_mask[:, 0, :2] = True  # type: ignore[index]
    several = batch.action_mask[:-1].sum(-1) > 1  # type: ignore[index]
    found = algorithm.divergence(algorithm.network(), batch)
    assert found.isfinite().equal(several)
    assert (found[several] > 0).all()


@pytest.mark.parametrize(
    ("name", "settings"),
    [("impala", {}), ("impala", {"uses": 3, "replay_share": 0.5}), ("ppo", {}), ("impact", {"batches": 2, "uses": 2})],
)
def test_observations_join_the_statistics_once_however_often_they_are_used(name: str, settings: dict[str, Any]) -> None:
    algorithm = algorithm_of(name, net={"normalize_obs": True}, **settings)
    net = algorithm.network()
    learning, batches = algorithm.learning(net), [make_batch(algorithm, seed=seed) for seed in (1, 2)]
    for batch in batches:
        learning.update(batch, 0)
    norm = net.body.norm.arrays[0]
    assert norm.count == 2 * T * B
    torch.testing.assert_close(norm.mean, torch.cat([batch.obs[:-1] for batch in batches]).mean((0, 1)))


@pytest.mark.parametrize(("name", "more"), [("a2c", {}), ("impala", {}), ("impala", {"popart": True})])
def test_equal_advantages_have_no_gradient_however_far_the_policy_has_moved(name: str, more: dict[str, Any]) -> None:
    settings = {"normalize_advantages": True, "discount": 0.0, "baseline_cost": 0.0, "entropy_cost": 0.0}
    algorithm = algorithm_of(name, **settings, **more)
    net = algorithm.network()
    for parameter in net.value.parameters():
        torch.nn.init.zeros_(parameter)
    batch = make_batch(algorithm, resets=0.3)
    batch = batch._replace(reward=torch.ones_like(batch.reward))
    total, metrics = algorithm.loss(net, batch)
    assert metrics["rho_clipped_mean"] < 0.9, "the ratios differ"
    assert not torch.autograd.grad(total, net.policy.weight)[0].any()


@pytest.mark.parametrize("name", ["impala", "a2c", "ppo", "impact"])
@pytest.mark.parametrize(("env", "net"), ACTIONS)
def test_lag_shows_in_the_curves(name: str, env: EnvSpec, net: dict[str, Any]) -> None:
    algorithm = algorithm_of(name, env, net=net)
    batch = on_policy(algorithm.network(), make_batch(algorithm, resets=0.3))
    moved = {"logits": batch.extras["logits"] + 0.3 * torch.arange(algorithm.family.n_params)}
    lagged = batch._replace(extras=batch.extras | moved)
    acted, learns = (algorithm.family.of(each.extras["logits"], each.legal) for each in (lagged, batch))
    rhos = (learns.log_prob(batch.actions) - acted.log_prob(batch.actions)).exp()[batch.mask]
    kl = acted.kl(learns)[batch.mask].mean().item()
    for given, behaviour_kl, rho in ((batch, 0.0, 1.0), (lagged, kl, rhos.clamp(max=1).mean().item())):
        metrics = algorithm.learning(algorithm.network()).update(given, 0).metrics
        assert metrics["behaviour_kl"].item() == pytest.approx(behaviour_kl, rel=1e-3, abs=1e-5)
        assert metrics["rho_clipped_mean"].item() == pytest.approx(rho, rel=1e-3)


@pytest.mark.parametrize("name", ACTOR_CRITICS)
def test_a_batch_is_learned_from_with_the_normalisation_used_for_acting(name: str) -> None:
    algorithm = algorithm_of(name, net={"normalize_obs": True}, **PROMPT.get(name, {}))
    net = algorithm.network()
    learning = algorithm.learning(net)
    learning.update(make_batch(algorithm), 0)
    assert net.body.norm.arrays[0].count == T * B
    batch = make_batch(algorithm, seed=2)
    batch = on_policy(net, batch._replace(obs=5 * batch.obs + 3))
    assert learning.update(batch, 0).metrics["behaviour_kl"].item() == pytest.approx(0.0, abs=1e-5)


def test_an_unroll_learns_from_all_steps_but_the_last() -> None:
    algorithm = algorithm_of("impala", net={"core": "lstm"})
    net, batch = algorithm.network(), make_batch(algorithm, resets=0.3)
    (logits, values), ((expected, expected_values), _) = unroll(net, batch), net(batch.inputs, batch.core_state)
    torch.testing.assert_close(logits, expected[:-1])
    torch.testing.assert_close(values, expected_values)
    values[-1].sum().backward()
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in net.parameters())


RULE = "adaptive 0.1"


def acted_in(algorithm: Any, net: Any, batch: Batch) -> Batch:
    """The same batch, as if `net` had acted in it, step by step."""
    core, answers = batch.core_state, []
    for t in range(T):
        sampling = Sampling(torch.arange(B), torch.Generator().manual_seed(t), greedy=False)
        act, core = algorithm.act(net, slice_steps(batch.inputs, slice(t, t + 1)), core, sampling)
        answers.append(act.extras)
    return batch._replace(extras={name: torch.stack([answer[name] for answer in answers]) for name in answers[0]})


@pytest.mark.parametrize(("name", "env"), [("impala", VECTORS), ("r2d2", VECTORS), ("sac", REACH)])
def test_the_divergence_is_0_for_equal_weights_in_the_format_of_brokers(name: str, env: EnvSpec) -> None:
    algorithm = algorithm_of(name, env, sync=RULE)
    net = perturb(algorithm.network(), 0.1)  # at first all actions have nearly the same value
    acting = deepcopy(net)
    acting.lower(torch.bfloat16)
    batch = acted_in(algorithm, acting, make_batch(algorithm, resets=0.2))
    batch = batch._replace(mask=torch.ones_like(batch.mask))
    same = divergences(algorithm, net, batch, torch.bfloat16)
    assert same.shape == (B, T)
    np.testing.assert_allclose(same, 0, atol=1e-6)
    assert divergences(algorithm, perturb(net, 1.0), batch, torch.bfloat16).mean() > 0.01


def test_a_learner_on_a_gpu_measures_in_the_format_of_brokers_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zerobeast.rl.nets.precision.fast_bfloat16", lambda device: device.type == "cuda")
    formats = [
        acting_dtype(RunConfig.model_validate({"broker": {"device": device}, "learner": {"device": "cuda"}}), gpu)
        for device, gpu in (("auto", torch.device("cuda")), ("cpu", torch.device("cuda")))
    ]
    assert formats == [torch.bfloat16, torch.float32]


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_the_divergence_of_an_actor_critic_is_the_kl_on_the_same_observations(*, core: str) -> None:
    algorithm = algorithm_of("impala", net={"core": core}, sync=RULE)
    net = algorithm.network()
    batch = acted_in(algorithm, net, make_batch(algorithm, resets=0.2))
    torch.testing.assert_close(batch.extras["value"], unroll(net, batch)[1][:-1].detach(), rtol=1e-4, atol=1e-5)
    found = algorithm.divergence(perturb(net, 0.05), batch)
    p, q = (extras.softmax(-1) for extras in (batch.extras["logits"], acted_in(algorithm, net, batch).extras["logits"]))
    expected: Tensor = (p * (p / q).log()).sum(-1)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_rollouts_carry_what_the_divergence_needs_only_if_the_sync_rule_uses_it() -> None:
    for name, env in (("dqn", VECTORS), ("sac", REACH)):
        assert [field.name for field in algorithm_of(name, env).policy.extras] == []
        assert [field.name for field in algorithm_of(name, env, sync=RULE).policy.extras] == ["best"]
