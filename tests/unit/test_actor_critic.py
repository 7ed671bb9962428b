"""What actor-critic algorithms share: acting, for every kind of action, and that learning sees what acting saw."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.build.batches import (
    ALGORITHMS,
    MINATAR,
    NESTED,
    PANEL,
    REACH,
    VECTORS,
    B,
    T,
    algorithm_of,
    generator,
    make_batch,
    on_policy,
    same,
    same_where_valid,
    two_ends,
    unrolled,
    weights,
    with_logits,
)
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.wire.specs import EnvSpec, PolicySpec
from zerobeast.rl.algos.policy_gradient.actor_critic import lag_metrics, logits_and_value, steps, unroll
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.data.batch import Batch
from zerobeast.rl.factory import make_algorithm
from zerobeast.rl.nets.actions import OneHots
from zerobeast.rl.nets.network import StepInput
from zerobeast.rl.ops.distributions import family_of
from zerobeast.rl.ops.tree import leaves, tree_map
from zerobeast.rl.protocol import Algorithm, Sampling
from zerobeast.rl.settings import ActorCriticSettings

SLOTS = torch.arange(B)
ACTOR_CRITICS = [name for name, section in ALGORITHMS.items() if issubclass(section, ActorCriticSettings)]

SHARES = [
    pytest.param(VECTORS, {}, id="choices"),
    pytest.param(MINATAR, {}, id="pictures"),
    pytest.param(PANEL, {}, id="several choices"),
    pytest.param(REACH, {}, id="real actions"),
    pytest.param(REACH, {"action_std": "state"}, id="a deviation for each state"),
    pytest.param(REACH, {"squash_actions": True}, id="squashed actions"),
    pytest.param(NESTED, {}, id="several parts and a mask"),
]


#: settings with which an algorithm changes its policy after every batch
PROMPT: dict[str, dict[str, Any]] = {
    "vmpo": {"target_period": 1, "popart": True},
    "impact": {"batches": 1, "uses": 1, "kl_cost": 1.0},
}


def updated(algorithm: Algorithm, batch: Batch) -> list[torch.Tensor]:
    """The weights after this batch."""
    torch.manual_seed(1)
    net = algorithm.network()
    algorithm.learning(net).update(batch, 0)
    return weights(net)


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
    own |= PROMPT.get(name, {})
    if "reduction" in ALGORITHMS[name].model_fields:
        own |= {"reduction": reduction}
    if "normalize_advantages" in ALGORITHMS[name].model_fields:
        own |= {"normalize_advantages": True}
    algorithm = algorithm_of(name, env, **own)
    batch, other = (make_batch(algorithm, resets=0.2, seed=seed, rows=B // 2) for seed in (1, 2))
    batch.action_mask[:] = True  # type: ignore[index]

    def metrics(batch: Batch) -> dict[str, float]:
        found = algorithm.learning(algorithm.network()).update(batch, 0).metrics
        return {key: float(value) for key, value in found.items()}

    alone, both = metrics(batch), metrics(Batch.joined([batch, forced(other, env)]))
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


def actor_critic(env: EnvSpec, net: dict[str, Any], *, use_lstm: bool = False) -> Any:
    return algorithm_of("impala", env, net={**net, "use_lstm": use_lstm})


@pytest.mark.parametrize("use_lstm", [False, True])
@pytest.mark.parametrize(("env", "net_settings"), SHARES)
def test_learning_gets_what_acting_got(env: EnvSpec, net_settings: dict[str, Any], *, use_lstm: bool) -> None:
    """One answer at a time, feeding back actions and state, against one unroll of the recorded steps."""
    algorithm = actor_critic(env, net_settings, use_lstm=use_lstm)
    net, g = algorithm.network(), generator()
    for parameter in net.policy.parameters():
        torch.nn.init.normal_(parameter, std=0.5, generator=g)
    script = make_batch(algorithm, resets=0.4)
    core, action = script.core_state, tree_map(lambda entry: entry[0], script.last_action)
    logits, values, actions = [], [], [action]
    for t in range(T):
        inputs = steps(script.inputs, slice(t, t + 1))._replace(last_action=tree_map(lambda entry: entry[None], action))
        act, core = algorithm.act(net, inputs, core, Sampling(SLOTS, g, greedy=False))
        action = act.action
        logits.append(act.extras["logits"])
        values.append(act.extras["value"])
        actions.append(action)
    taken = tree_map(lambda *each: torch.stack(each), *actions)
    recorded = with_logits(script, torch.stack(logits))._replace(last_action=taken)
    learner_logits, learner_values = unrolled(net, recorded)
    torch.testing.assert_close(learner_logits[:-1], recorded.extras["logits"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(learner_values[:-1], torch.stack(values), rtol=1e-4, atol=1e-5)
    metrics = algorithm.loss(net, recorded)[1]
    assert metrics["behaviour_kl"].item() == pytest.approx(0.0, abs=1e-5)
    assert metrics["rho_clipped_mean"].item() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("at", [2, T - 1], ids=["within", "at the end of the unroll"])
@pytest.mark.parametrize(
    ("terminated", "truncated", "bootstraps"), [(True, False, False), (False, True, True), (True, True, False)]
)
@pytest.mark.parametrize("name", ACTOR_CRITICS)
def test_only_a_truncated_step_learns_from_the_final_observation(
    name: str, at: int, *, terminated: bool, truncated: bool, bootstraps: bool
) -> None:
    algorithm = algorithm_of(name, **PROMPT.get(name, {}))
    batch, other = two_ends(algorithm, terminated=terminated, truncated=truncated, at=at)
    assert same(updated(algorithm, batch), updated(algorithm, other)) != bootstraps


@pytest.mark.parametrize(("env", "use_lstm"), [(VECTORS, False), (VECTORS, True), (NESTED, True)])
@pytest.mark.parametrize("name", ACTOR_CRITICS)
def test_void_transitions_and_those_beyond_the_budget_change_nothing(
    name: str, env: EnvSpec, *, use_lstm: bool
) -> None:
    algorithm = algorithm_of(name, env, net={"use_lstm": use_lstm}, **PROMPT.get(name, {}))
    batch, other = same_where_valid(algorithm)
    assert same(updated(algorithm, batch), updated(algorithm, other))
    assert not same(updated(algorithm, batch), weights(algorithm.network()))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("impala", {}),
        ("impala", {"batches": 1, "uses": 3}),
        ("impala", {"replay_share": 0.5}),
        ("ppo", {}),
        ("impact", {"batches": 2, "uses": 2}),
    ],
)
def test_observations_join_the_statistics_once_however_often_they_are_used(name: str, settings: dict[str, Any]) -> None:
    algorithm = algorithm_of(name, net={"normalize_obs": True}, **settings)
    net = algorithm.network()
    learning, batches = algorithm.learning(net), [make_batch(algorithm, seed=seed) for seed in (1, 2)]
    for batch in batches:
        learning.update(batch, 0)
    assert net.body.norm.arrays[0].count == 2 * T * B
    torch.testing.assert_close(
        net.body.norm.arrays[0].mean, torch.cat([batch.obs[:-1] for batch in batches]).mean((0, 1))
    )


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


@pytest.mark.parametrize("name", ["a2c", "impala"])
def test_normalised_advantages_do_not_depend_on_the_size_of_rewards(name: str) -> None:
    algorithm = algorithm_of(name, normalize_advantages=True, baseline_cost=0.0, reward_clipping="none")
    net = algorithm.network()
    with torch.no_grad():  # so that nothing else sees the reward
        net.value.weight.zero_()
        net.policy.weight[:, -1] = 0.0
    batch = make_batch(algorithm, resets=0.3)
    loss = algorithm.loss(net, batch)[0].item()
    assert loss != 0.0
    assert loss == pytest.approx(algorithm.loss(net, batch._replace(reward=batch.reward * 16))[0].item(), rel=1e-4)


@pytest.mark.parametrize("name", ["impala", "a2c", "ppo", "impact"])
@pytest.mark.parametrize(("env", "net_settings"), SHARES[2:])
def test_lag_shows_in_the_curves(name: str, env: EnvSpec, net_settings: dict[str, Any]) -> None:
    algorithm = algorithm_of(name, env, net=net_settings)
    batch = on_policy(algorithm.network(), make_batch(algorithm, resets=0.3))
    lagged = with_logits(batch, batch.extras["logits"] + 0.3 * torch.arange(algorithm.family.n_params))
    fresh, late = (algorithm.learning(algorithm.network()).update(each, 0).metrics for each in (batch, lagged))
    assert fresh["behaviour_kl"].item() == pytest.approx(0.0, abs=1e-5)
    assert fresh["rho_clipped_mean"].item() == pytest.approx(1.0, abs=1e-4)
    acted, learns = (algorithm.family.of(each.extras["logits"], each.legal) for each in (lagged, batch))
    assert late["behaviour_kl"].item() == pytest.approx(acted.kl(learns)[batch.mask].mean().item(), rel=1e-3)
    rhos = (learns.log_prob(batch.actions) - acted.log_prob(batch.actions)).exp()[batch.mask]
    assert late["rho_clipped_mean"].item() == pytest.approx(rhos.clamp(max=1).mean().item(), rel=1e-3)


def test_reported_metrics_show_lag_that_the_mean_ratio_hides() -> None:
    family, n = family_of(VECTORS.action), 200_000
    mu, pi = torch.tensor([1.0, 0.0, -1.0]), torch.tensor([-1.0, 0.0, 1.0])
    behaviour, policy = family.of(mu.expand(n, 1, 3)), family.of(pi.expand(n, 1, 3))
    drawn = behaviour.sample(generator())
    log_rhos = policy.log_prob(drawn) - behaviour.log_prob(drawn)
    found = lag_metrics(behaviour, policy, log_rhos, torch.ones(n, 1, dtype=torch.bool))
    assert log_rhos.exp().mean().item() == pytest.approx(1.0, abs=0.02)
    p, q = mu.softmax(0), pi.softmax(0)
    assert found["behaviour_kl"].item() == pytest.approx((p * (p / q).log()).sum().item(), rel=1e-4)
    assert found["rho_clipped_mean"].item() == pytest.approx(1 - (p - q).abs().sum().item() / 2, abs=0.005)


@pytest.mark.parametrize("name", [*ACTOR_CRITICS, "impala with replay"])
def test_a_batch_is_learned_from_with_the_normalisation_used_for_acting(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, *replay = name.split(" with ")
    settings = {"replay_share": 0.5} if replay else PROMPT.get(name, {})
    algorithm = algorithm_of(name, net={"normalize_obs": True}, **settings)
    net, seen, forward = algorithm.network(), list[torch.Tensor](), PolicyAndValue.forward
    learning = algorithm.learning(net)
    learning.update(make_batch(algorithm), 0)
    batch = make_batch(algorithm, seed=2)
    batch = on_policy(net, batch._replace(obs=5 * batch.obs + 3))

    def noted(self: PolicyAndValue, inputs: StepInput, *others: torch.Tensor) -> Any:
        output = forward(self, inputs, *others)
        if self.value.weight.requires_grad:  # not the target of IMPACT
            seen.append(output[0].logits.detach())
        return output

    monkeypatch.setattr(PolicyAndValue, "forward", noted)
    learning.update(batch, 0)
    torch.testing.assert_close(seen[0][:T, :B], batch.extras["logits"])


@pytest.mark.parametrize(("env", "net_settings"), SHARES)
def test_greedy_takes_the_likeliest_action_and_otherwise_the_generator_decides(
    env: EnvSpec, net_settings: dict[str, Any]
) -> None:
    algorithm = actor_critic(env, net_settings)
    net = algorithm.network()
    for parameter in net.policy.parameters():
        torch.nn.init.normal_(parameter, std=0.1, generator=generator())  # no action is certain, whatever the features
    batch = make_batch(algorithm)
    inputs = steps(batch.inputs, slice(1))
    core = net.initial_state(B)
    greedy = algorithm.act(net, inputs, core, Sampling(SLOTS, generator(), greedy=True))[0]
    policy = algorithm.family.of(greedy.extras["logits"], None if batch.legal is None else batch.legal[0])
    assert same(leaves(greedy.action), leaves(policy.mode()))

    def draws(seed: int) -> list[torch.Tensor]:
        g = generator(seed)
        acts = [algorithm.act(net, inputs, core, Sampling(SLOTS, g, greedy=False))[0] for _ in range(20)]
        return [entry for act in acts for entry in leaves(act.action)]

    assert same(draws(1), draws(1))
    assert not same(draws(1), draws(2))


@pytest.mark.parametrize("use_lstm", [False, True])
@pytest.mark.parametrize(("env", "net_settings"), SHARES)
def test_every_parameter_gets_a_gradient_from_every_kind_of_action(
    env: EnvSpec, net_settings: dict[str, Any], *, use_lstm: bool
) -> None:
    algorithm = actor_critic(env, net_settings, use_lstm=use_lstm)
    net = algorithm.network()
    algorithm.loss(net, make_batch(algorithm))[0].backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_an_unroll_learns_from_all_steps_but_the_last() -> None:
    algorithm = algorithm_of("impala", net={"use_lstm": True})
    net, batch = algorithm.network(), make_batch(algorithm, resets=0.3)
    logits, values = unroll(net, batch)
    expected_logits, expected_values = unrolled(net, batch)
    torch.testing.assert_close(logits, expected_logits[:-1])
    torch.testing.assert_close(values, expected_values)
    values[-1].sum().backward()
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in net.parameters())


def test_the_policy_spec_matches_the_network() -> None:
    assert actor_critic(VECTORS, {}).policy == PolicySpec(logits_and_value(3), 0)
    assert actor_critic(PANEL, {}).policy == PolicySpec(logits_and_value(7), 0)
    assert actor_critic(REACH, {}).policy == PolicySpec(logits_and_value(4), 0)
    assert actor_critic(MINATAR, {}, use_lstm=True).policy == PolicySpec(logits_and_value(6), 16)


def test_the_seed_alone_decides_the_first_weights() -> None:
    torch.manual_seed(5)
    one = make_algorithm(RunConfig(), VECTORS).network()
    before = torch.get_rng_state()
    two = make_algorithm(RunConfig(), VECTORS).network()
    assert torch.equal(torch.get_rng_state(), before)
    other = make_algorithm(RunConfig(seed=2), VECTORS).network()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not torch.equal(one.policy.weight, other.policy.weight)
