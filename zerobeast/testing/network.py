"""The rules of a torso or body, as `net.torso` names it; `env` is one that it is for, and more keywords are of `net`.

A core keeps them too: `rule("mlp", env, core="my_package.network:GRU")`. Without one, rules that need a core take lstm.

    @pytest.mark.parametrize("rule", network.RULES, ids=str)
    def test_contract(rule):
        rule("my_package.network:Entities", EnvSpec("Mine-v0", ArraySpace.box((4,)), ArraySpace.discrete(2)))
"""

from contextlib import suppress
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zerobeast.common.errors import ConfigError
from zerobeast.common.settings import NetConfig, RunConfig
from zerobeast.common.wire import ArraySpace, EnvSpec, Space, nest_values
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.factory import make_algorithm
from zerobeast.rl.nets import StepInput
from zerobeast.rl.nets.body import make_body
from zerobeast.rl.nets.weights import flatten, layout_id, load_flat
from zerobeast.rl.ops.tree import leaves, tree_map
from zerobeast.testing.rules import rule, rules_in

T, B = 5, 3
LSTM: dict[str, Any] = {"core": "lstm"}
MAX_ROUNDING = 0.1  #: how far features in bfloat16 may be from those in float32, in units of their length
OBSERVATIONS: tuple[ArraySpace, ...] = (
    ArraySpace.box((5,)),
    ArraySpace.box((3,), "<f8"),
    ArraySpace.box((40, 40), "|u1"),
    ArraySpace.box((10, 10, 4), "|b1"),
    ArraySpace.discrete(4),
)


def network(torso: str, env: EnvSpec, seed: int = 1, **net: Any) -> PolicyAndValue:
    """An actor-critic with this torso, and with a core of 16 units if `net` asks for one."""
    torch.default_generator.manual_seed(seed)
    return PolicyAndValue(NetConfig.model_validate({"core_width": 16, **net, "torso": torso}), env)


def observations(env: EnvSpec, *lead: int) -> Any:
    """Random observations [*lead, (k,) *frame], or a tree of such."""
    return _values(env.obs, *lead, *env.stack)


def steps(env: EnvSpec, n_steps: int, batch: int, *, resets: float = 0.3) -> StepInput:
    """Random inputs [T, B]; in this share of them an episode begins."""
    masks = torch.ones(n_steps, batch, env.mask_size, dtype=torch.bool) if env.action_mask else None
    reward, first = 2 * torch.randn(n_steps, batch), torch.rand(n_steps, batch) < resets
    return StepInput(observations(env, n_steps, batch), _values(env.action, n_steps, batch), reward, first, masks)


def _values(space: Space, *lead: int) -> Any:
    return nest_values(space, (_random(array, (*lead, *array.shape)) for array in space.arrays))


def _random(space: ArraySpace, shape: tuple[int, ...]) -> Tensor:
    if space.choices:
        most = torch.tensor(space.choices).view(space.shape)
        return (torch.rand(shape) * most).to(torch.from_numpy(np.zeros(0, space.dtype)).dtype)
    if space.dtype == "|b1":
        return torch.rand(shape) < 0.3
    if space.dtype == "|u1":
        return torch.randint(0, 256, shape, dtype=torch.uint8)
    return torch.randn(shape).to(torch.from_numpy(np.zeros(0, space.dtype)).dtype)


def _answers(net: PolicyAndValue, inputs: StepInput, core: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """All features side by side [T, B, F], and the state after them [B, S]."""
    features, after = net.body(inputs, net.initial_state(inputs.first.shape[1]) if core is None else core)
    return torch.cat(features, -1), after


def _near(one: Tensor, two: Tensor) -> None:
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def _same(one: Any, two: Any) -> None:
    torch.testing.assert_close(one, two, rtol=0, atol=0, equal_nan=True)


@rule
def features_are_of_the_size_that_it_declares(torso: str, env: EnvSpec, **net: Any) -> None:
    """The layers behind it are made for that size, whatever the number of steps, environments and heads."""
    made = network(torso, env, **net)
    for lead in ((1, 1), (T, B), (2, 7)):
        features, after = made.body(steps(env, *lead), made.initial_state(lead[1]))
        assert len(features) in (1, 2), f"{len(features)} tensors of features for 2 heads"
        for each in features:
            assert each.shape == (*lead, made.body.out_size), f"{list(each.shape)}, expected {made.body.out_size} last"
            assert each.dtype == torch.float32, f"features of {each.dtype}"
            assert each.isfinite().all(), "features are not finite"
        assert after.shape == (lead[1], made.core_size), f"a state of {list(after.shape)}"
    torch.default_generator.manual_seed(1)
    alone = make_body(NetConfig.model_validate({**net, "torso": torso}), env, heads=1)
    found, _ = alone(steps(env, T, B), torch.zeros(B, alone.core_size))
    assert len(found) == 1, f"{len(found)} tensors of features for 1 head"


@rule
def rows_do_not_depend_on_each_other(torso: str, env: EnvSpec, **net: Any) -> None:
    """A broker answers whichever environments happen to wait, and the learner computes the same in other batches."""
    made = network(torso, env, **net)
    inputs, core = steps(env, 1, B), torch.randn(B, made.core_size)
    together, _ = _answers(made, inputs, core)
    for row in range(B):
        alone, _ = _answers(made, tree_map(lambda entry, b=row: entry[:, b : b + 1], inputs), core[row : row + 1])
        _near(alone, together[:, row : row + 1])


@rule
def answers_are_the_same_each_time(torso: str, env: EnvSpec, **net: Any) -> None:
    """The learner computes again what has acted: noise, as of dropout, would make every importance ratio wrong."""
    made, inputs = network(torso, env, **net), steps(env, T, B)
    _same(_answers(made, inputs), _answers(made, inputs))


@rule
def answering_changes_nothing(torso: str, env: EnvSpec, **net: Any) -> None:
    """A policy that changes as it acts is none that the learner has; statistics are added by `observe` alone."""
    made, inputs = network(torso, env, **net), steps(env, T, B)
    before, given = flatten(made).copy(), tree_map(torch.clone, inputs)
    _answers(made, inputs)
    assert np.array_equal(flatten(made), before), "its weights or statistics changed"
    _same(leaves(inputs), leaves(given))


@rule
def equal_seeds_make_equal_weights(torso: str, env: EnvSpec, **net: Any) -> None:
    """A run can be repeated, and all ranks of a learner begin with the same policy."""
    one, two = (network(torso, env, **net) for _ in range(2))
    assert np.array_equal(flatten(one), flatten(two)), "two networks of one seed differ"


@rule
def weights_travel_as_bytes(torso: str, env: EnvSpec, **net: Any) -> None:
    """A broker makes the network and gets all that the learner's has learned as one row of bytes."""
    here, there = (network(torso, env, seed, **LSTM | net) for seed in (1, 2))
    here.observe(observations(env, T, B))
    assert layout_id(here) == layout_id(there), "two networks of the same settings have different layouts"
    load_flat(there, flatten(here))
    assert np.array_equal(flatten(there), flatten(here)), "the bytes do not come back as they were"
    inputs = steps(env, T, B)
    _same(_answers(there, inputs), _answers(here, inputs))


@rule
def a_copy_is_independent(torso: str, env: EnvSpec, **net: Any) -> None:
    """Algorithms copy the network, for target networks and for acting while they learn."""
    made = network(torso, env, **LSTM | net)
    copy, inputs, before = deepcopy(made), steps(env, T, B), flatten(made).copy()
    _same(_answers(copy, inputs), _answers(made, inputs))
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.add_(1.0)
    assert np.array_equal(flatten(made), before), "a change of the copy changes the original"


@rule
def bfloat16_is_near_float32(torso: str, env: EnvSpec, **net: Any) -> None:
    """Brokers act in bfloat16 if the machine is faster with it, and send float32."""
    made, inputs = network(torso, env, **LSTM | net), steps(env, T, B)
    with torch.no_grad():
        exact, _ = _answers(made, inputs)
        made.lower(torch.bfloat16)
        rounded, after = _answers(made, inputs)
    assert rounded.dtype == after.dtype == torch.float32, f"features of {rounded.dtype}, a state of {after.dtype}"
    difference = float((rounded - exact).norm() / exact.norm().clamp(min=1e-6))
    assert difference < MAX_ROUNDING, f"features in bfloat16 differ by {difference:.0%}"


@rule
def every_parameter_is_trained(torso: str, env: EnvSpec, **net: Any) -> None:
    """A parameter without a gradient is memory and traffic for nothing; one that is to stay needs no gradient."""
    made = network(torso, env, **net)
    for _ in range(3):
        torch.autograd.backward(_answers(made, steps(env, T, 8, resets=0.0))[0].square().sum())
    for name, parameter in made.body.named_parameters():
        if parameter.requires_grad:
            grad = parameter.grad
            assert grad is not None, f"{name} has no gradient"
            assert grad.any(), f"{name} has a gradient of zeros"


@rule
def one_call_over_time_equals_one_call_per_step(torso: str, env: EnvSpec, **net: Any) -> None:
    """Actors take a step at a time, and the learner unrolls all of them at once."""
    for kind in (net, LSTM | net):
        made, inputs = network(torso, env, **kind), steps(env, T, B)
        core = torch.randn(B, made.core_size)
        unrolled, after = _answers(made, inputs, core)
        for t in range(T):
            each, core = _answers(made, tree_map(lambda entry, at=t: entry[at : at + 1], inputs), core)
            _near(each[0], unrolled[t])
        _near(core, after)


@rule
def an_episode_begins_without_a_past(torso: str, env: EnvSpec, **net: Any) -> None:
    """What happened before an episode, even if it is not a number, is none of that episode's inputs."""
    for kind in (net, LSTM | net):
        made = network(torso, env, **{"last_action_reward": "always"} | kind)
        inputs = steps(env, 1, B)._replace(first=torch.ones(1, B, dtype=torch.bool))
        past = inputs._replace(last_action=_values(env.action, 1, B), reward=torch.full((1, B), torch.nan))
        _same(_answers(made, inputs, torch.randn(B, made.core_size)), _answers(made, past))


@rule
def other_observations_are_read_or_refused(torso: str, env: EnvSpec, **net: Any) -> None:
    """An observation that it cannot read is a mistake in the settings, which is said before anything starts."""
    config = RunConfig.model_validate({"net": {**net, "torso": torso}})
    for obs in (*env.obs.arrays, *OBSERVATIONS):
        for frame_stack in (1, 4):
            with suppress(ConfigError):
                make_algorithm(config, EnvSpec("Other-v0", obs, env.action, frame_stack=frame_stack)).network()


RULES = rules_in(globals())
