"""The agent's network: its torso, what it sees, what it must not see, and that one call over time equals many steps."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.modules.module import register_module_parameter_registration_hook

from tests.helpers import ROOT
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings.net import NetConfig, Reading, readings
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.wire.spaces import ArraySpace, CompositeSpace, Part
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.rl.algos.impala.algorithm import Impala
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.factory import make_algorithm
from zerobeast.rl.nets.actions import action_features
from zerobeast.rl.nets.network import StepInput
from zerobeast.rl.nets.torso import make_torso
from zerobeast.rl.ops.tree import tree_map

SIX = ArraySpace.discrete(6)
PONG = EnvSpec("PongNoFrameskip-v4", ArraySpace.box((84, 84), "|u1"), SIX, frame_stack=4, frame_skip=4)
MINATAR = EnvSpec("MinAtar/Breakout", ArraySpace.box((10, 10, 4), "|b1"), SIX)
CARTPOLE = EnvSpec("CartPole-v1", ArraySpace.box((4,)), ArraySpace.discrete(2))
SMALL = EnvSpec("Small-v0", ArraySpace.box((36, 36), "|u1"), ArraySpace.discrete(3), frame_stack=2)
FOOTBALL = EnvSpec("football/5_vs_5", ArraySpace.box((72, 96, 4), "|b1"), ArraySpace.discrete(19), frame_stack=4)
CASES = [("shallow", SMALL), ("deep", SMALL), ("football", FOOTBALL), ("minatar", MINATAR), ("mlp", CARTPOLE)]
SEEN: dict[str, Any] = {"last_action_reward": "always"}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(1)


def network(env: EnvSpec, torso: str = "auto", **settings: Any) -> PolicyAndValue:
    return PolicyAndValue(NetConfig.model_validate({"torso": torso, "lstm_size": 16, **settings}), env)


def observations(env: EnvSpec, *lead: int) -> Tensor:
    stack = (env.frame_stack,) if env.frame_stack > 1 else ()
    shape = (*lead, *stack, *env.obs.shape)
    if env.obs.dtype == "|u1":
        return torch.randint(0, 256, shape, dtype=torch.uint8)
    return torch.rand(shape) < 0.3 if env.obs.dtype == "|b1" else torch.randn(shape)


def steps(env: EnvSpec, n_steps: int, batch: int, *, resets: float = 0.3) -> StepInput:
    return StepInput(
        observations(env, n_steps, batch),
        torch.randint(0, env.action.sizes[0], (n_steps, batch)),
        torch.randn(n_steps, batch) * 2,
        torch.rand(n_steps, batch) < resets,
    )


def test_the_shallow_net_has_exactly_torchbeasts_parameters() -> None:
    assert sum(parameter.numel() for parameter in network(PONG, "shallow", **SEEN).parameters()) == 1_687_768


def test_the_deep_net_has_fifteen_convolutions_and_torchbeasts_size() -> None:
    net = network(PONG, "deep", **SEEN)
    assert sum(isinstance(module, torch.nn.Conv2d) for module in net.modules()) == 15
    # TorchBeast's, plus the weights from the last action's six inputs to seven outputs
    assert sum(parameter.numel() for parameter in net.parameters()) == 1_091_038 + 6 * 7


def test_the_football_net_is_seed_rls_and_gets_the_planes_of_each_frame_in_turn() -> None:
    torso = make_torso(NetConfig(torso="football"), FOOTBALL)
    convolutions = sum(9 * n * m + m for n, m in [(16, 16), (16, 32), (32, 32), (32, 32)])
    blocks = sum(4 * (9 * n * n + n) for n in (16, 32, 32, 32))
    dense = 5 * 6 * 32 * 256 + 256  # 72 x 96, halved four times
    assert sum(parameter.numel() for parameter in torso.parameters()) == convolutions + blocks + dense
    stacks, seen = observations(FOOTBALL, 2), []
    torso.first.register_forward_pre_hook(lambda _module, given: seen.append(given[0]))
    torso(stacks)
    planes = [stacks[:, frame, :, :, plane] for frame in range(4) for plane in range(4)]
    assert (seen[0] == torch.stack(planes, 1)).all()


@pytest.mark.parametrize(
    ("env", "convolutions", "width"),
    [
        (PONG, 3, 512),
        (EnvSpec("Colour-v0", ArraySpace.box((84, 84, 3), "|u1"), SIX), 3, 512),
        (EnvSpec("ChannelsFirst-v0", ArraySpace.box((3, 96, 96), "|u1"), SIX), 3, 512),
        (MINATAR, 1, 128),
        (CARTPOLE, 0, 64),
        (EnvSpec("Stacked-v0", ArraySpace.box((4,), "<f8"), SIX, frame_stack=3), 0, 64),
        (EnvSpec("Matrix-v0", ArraySpace.box((2, 3)), SIX), 0, 64),
        (EnvSpec("Number-v0", ArraySpace.box((), "<i8"), SIX), 0, 64),
    ],
)
def test_the_torso_is_chosen_by_the_observations(env: EnvSpec, convolutions: int, width: int) -> None:
    torso = make_torso(NetConfig(), env)
    assert sum(isinstance(module, torch.nn.Conv2d) for module in torso.modules()) == convolutions
    features = torso(observations(env, 5))
    assert features.shape == (5, torso.out_size) == (5, width)


@pytest.mark.parametrize("shape", [(8,), (30, 8), (7, 7, 3), (84, 84, 3)])
@pytest.mark.parametrize("normalize", [False, True])
def test_bytes_that_are_no_pixels_are_read_as_floats_are(shape: tuple[int, ...], *, normalize: bool) -> None:
    nets = []
    for dtype in ("|u1", "<f4"):
        env = EnvSpec("Ones-v0", ArraySpace.box(shape, dtype, (0.0,), (1.0,)), SIX).for_policies()
        torch.manual_seed(1)
        nets.append(network(EnvSpec.from_wire(env.to_wire()), normalize_obs=normalize))
    inputs = steps(replace(CARTPOLE, obs=ArraySpace.box(shape, "|b1")), 2, 3)
    answers = [
        net(inputs._replace(obs=inputs.obs.to(dtype)), net.initial_state(3))[0]
        for net, dtype in zip(nets, (torch.uint8, torch.float32), strict=True)
    ]
    torch.testing.assert_close(*answers)


def box(*shape: int, dtype: str = "|u1", high: float = 255.0) -> ArraySpace:
    return ArraySpace.box(shape, dtype, (0.0,), (high,))


PICTURE, PLANES, NUMBERS = (True, 1 / 255), (True, 1.0), (False, 1.0)


@pytest.mark.parametrize(
    ("space", "settings", "expected"),
    [
        (box(84, 84), {}, PICTURE),
        (box(16, 16), {}, PICTURE),
        (box(84, 84, 12), {}, PICTURE),
        (ArraySpace.box((3, 96, 96), "|u1"), {}, PICTURE),
        (box(4, 96, 96, 3), {}, PICTURE),
        (box(4, 1, 84, 84), {}, PICTURE),
        (box(4, 96, 96, 3, high=9.0), {}, NUMBERS),
        (box(5, 5, 5, 3, dtype="<f4"), {}, NUMBERS),
        (box(4, 96, 96, 3), {"pixels": "all"}, (False, 1 / 255)),
        (box(4, 96, 96, 3), {"torso": "mlp"}, (False, 1 / 255)),
        (box(84, 84), {"torso": "mlp"}, (False, 1 / 255)),
        (box(84, 84), {"pixels": "none"}, NUMBERS),
        (box(84, 84, 3), {"pixels": "none"}, PLANES),
        (box(84, 84, 3, high=9.0), {}, PLANES),
        (box(9, 9, 3), {}, PLANES),
        (box(12, 12), {}, PICTURE),
        (box(19, 19, 17), {}, PLANES),
        (box(10, 10, 4, dtype="|b1"), {}, PLANES),
        (box(64, 64, 3, dtype="<f4"), {}, PLANES),
        (box(30, 8, dtype="<f4"), {}, NUMBERS),
        (box(30, 8, dtype="<f4"), {"torso": "minatar"}, PLANES),
        (box(128), {}, NUMBERS),
        (box(128), {"pixels": "all"}, (False, 1 / 255)),
        (box(7, 7, 3, high=9.0), {"pixels": "all"}, PICTURE),
        (box(30, 8, dtype="<f4"), {"pixels": "all"}, PLANES),
    ],
)
def test_shape_and_range_determine_what_an_array_is_unless_settings_do(
    space: ArraySpace, settings: dict[str, Any], expected: tuple[bool, float]
) -> None:
    assert Reading.of(space, NetConfig(**settings)) == expected
    seen_by_policies = EnvSpec("Any-v0", space, SIX).for_policies()
    assert Reading.of(EnvSpec.from_wire(seen_by_policies.to_wire()).obs, NetConfig(**settings)) == expected


@pytest.mark.parametrize("normalize", [False, True])
def test_a_stack_that_the_environment_makes_is_read_as_a_stack_of_frames_is(*, normalize: bool) -> None:
    answers = []
    seen = torch.randint(0, 256, (2, 3, 4, 40, 40, 3), dtype=torch.uint8, generator=torch.manual_seed(2))
    for shape, stack in (((4, 40, 40, 3), 1), ((40, 40, 3), 4)):
        env = EnvSpec("Any-v0", box(*shape), SIX, frame_stack=stack)
        torch.manual_seed(1)
        net = network(env, normalize_obs=normalize)
        answers.append(net(steps(env, 2, 3)._replace(obs=seen), net.initial_state(3))[0])
    torch.testing.assert_close(*answers)


def test_how_each_part_of_an_observation_is_read_is_shown_in_a_line() -> None:
    parts = {"cam": box(64, 64, 3), "grid": box(7, 7, 3), "mode": ArraySpace.discrete(3), "speed": box(dtype="<f4")}
    obs = CompositeSpace("dict", tuple(Part(*part) for part in parts.items()))
    assert readings(EnvSpec("Any-v0", obs, SIX), NetConfig()) == [
        "observation.cam 64x64x3 uint8: picture, scaled by 1/255, convolutions",
        "observation.grid 7x7x3 uint8: planes of numbers, as they are (net.pixels all would scale them by 1/255), "
        "convolutions",
        "observation.mode single int64: choices, one-hot, MLP",
        "observation.speed single float32: numbers, as they are, MLP",
    ]


def test_the_network_of_the_quick_start_is_one(tmp_path: Path) -> None:
    page = (ROOT / "docs/quickstart.md").read_text()
    (code,) = re.findall(r"```python\n(import torch\s+class MyTorso.*?)```", page, re.DOTALL)
    (tmp_path / "my_file.py").write_text(code)
    torso = make_torso(NetConfig(torso=f"{tmp_path}/my_file.py:MyTorso", hidden_size=8), CARTPOLE)
    assert torso(observations(CARTPOLE, 5)).shape == (5, torso.out_size) == (5, 8)


@pytest.mark.parametrize(("torso", "env"), CASES)
def test_the_activation_can_be_set_and_is_by_default_the_torsos_own(torso: str, env: EnvSpec) -> None:
    outputs = {}
    for activation in ("auto", "relu", "tanh", "elu", "silu", "gelu"):
        torch.manual_seed(2)
        net = make_torso(NetConfig.model_validate({"torso": torso, "activation": activation}), env)
        obs = observations(env, 3)
        outputs[activation] = net(obs)
        outputs[activation].sum().backward()
    own = outputs.pop("auto")
    assert [name for name, out in outputs.items() if torch.equal(out, own)] == ["tanh" if torso == "mlp" else "relu"]


@pytest.mark.parametrize(("torso", "env"), CASES)
def test_the_width_of_the_dense_layer_can_be_set(torso: str, env: EnvSpec) -> None:
    assert make_torso(NetConfig.model_validate({"torso": torso, "hidden_size": 48}), env).out_size == 48


@pytest.mark.parametrize("widths", [(8, 8), (5,), (7, 6, 5)])
def test_an_mlp_has_the_layers_that_are_asked_for(widths: tuple[int, ...]) -> None:
    torso = make_torso(NetConfig(hidden_sizes=widths, hidden_size=9), CARTPOLE)
    assert torso.out_size == widths[-1]
    assert torso(observations(CARTPOLE, 2)).shape == (2, widths[-1])
    names = [name for name in torso.state_dict() if name.endswith("weight")]
    assert names == [f"{name}.weight" for name in ("first", "second", "third")[: len(widths)]]
    if len(widths) == 2:  # the same network, whichever setting said so
        states = []
        for net in (NetConfig(hidden_sizes=widths), NetConfig(hidden_size=8)):
            torch.manual_seed(1)
            states.append(make_torso(net, CARTPOLE).state_dict())
        torch.testing.assert_close(*states, rtol=0, atol=0)


@pytest.mark.parametrize("use_lstm", [False, True])
@pytest.mark.parametrize(("torso", "env"), CASES)
def test_answers_have_the_declared_shapes(torso: str, env: EnvSpec, *, use_lstm: bool) -> None:
    net = network(env, torso, use_lstm=use_lstm)
    assert net.core_size == (32 if use_lstm else 0)
    core = net.initial_state(3)
    assert core.shape == (3, net.core_size)
    assert not core.any()
    (logits, value), after = net(steps(env, 5, 3), core)
    assert logits.shape == (5, 3, env.action.sizes[0])
    assert value.shape == (5, 3)
    assert after.shape == core.shape
    assert logits.dtype == value.dtype == after.dtype == torch.float32


@pytest.mark.parametrize("use_lstm", [False, True])
@pytest.mark.parametrize(("torso", "env"), CASES)
def test_one_call_over_time_equals_one_call_per_step(torso: str, env: EnvSpec, *, use_lstm: bool) -> None:
    net = network(env, torso, use_lstm=use_lstm)
    inputs, core = steps(env, 6, 3), torch.randn(3, net.core_size)
    (logits, value), after = net(inputs, core)
    for t in range(6):
        (step_logits, step_value), core = net(tree_map(lambda entry, t=t: entry[t : t + 1], inputs), core)
        torch.testing.assert_close(step_logits[0], logits[t], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(step_value[0], value[t], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(core, after, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("use_lstm", [False, True])
@pytest.mark.parametrize(("torso", "env"), CASES)
def test_every_parameter_has_a_gradient(torso: str, env: EnvSpec, *, use_lstm: bool) -> None:
    net = network(env, torso, use_lstm=use_lstm)
    (logits, value), _ = net(steps(env, 4, 3, resets=0.0), net.initial_state(3))
    (logits.square().sum() + value.square().sum()).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


@pytest.mark.parametrize("use_lstm", [False, True])
def test_the_first_step_of_an_episode_gets_neither_action_nor_reward_nor_memory(*, use_lstm: bool) -> None:
    net = network(CARTPOLE, use_lstm=use_lstm, **SEEN)
    torch.nn.init.normal_(net.policy.weight)
    inputs = steps(CARTPOLE, 1, 8)._replace(first=torch.ones(1, 8, dtype=torch.bool))
    soiled = inputs._replace(last_action=1 - inputs.last_action, reward=torch.full((1, 8), torch.nan))
    (logits, value), after = net(inputs, torch.randn(8, net.core_size))
    (soiled_logits, soiled_value), soiled_after = net(soiled, torch.randn(8, net.core_size))
    assert torch.equal(logits, soiled_logits)
    assert torch.equal(value, soiled_value)
    assert torch.equal(after, soiled_after)


@pytest.mark.parametrize(
    ("settings", "seen"),
    [
        ({}, False),
        ({"use_lstm": True}, True),
        ({"last_action_reward": "always"}, True),
        ({"last_action_reward": "never", "use_lstm": True}, False),
    ],
)
def test_the_last_action_and_the_reward_are_inputs_with_memory_or_on_request(
    settings: dict[str, Any], *, seen: bool
) -> None:
    net, inputs = network(CARTPOLE, **settings), steps(CARTPOLE, 2, 4, resets=0.0)
    other = inputs._replace(last_action=1 - inputs.last_action, reward=inputs.reward + 0.5)
    values = [net(each, net.initial_state(4))[0].value for each in (inputs, other)]
    assert torch.equal(*values) is not seen


def test_later_steps_see_the_last_action_and_the_reward_clipped_to_one() -> None:
    net = network(CARTPOLE, **SEEN)
    inputs = steps(CARTPOLE, 1, 8, resets=0.0)._replace(reward=torch.full((1, 8), 7.0))

    def value(**changes: Tensor) -> Tensor:
        return net(inputs._replace(**changes), net.initial_state(8))[0].value

    assert torch.equal(value(), value(reward=torch.ones(1, 8)))
    assert (value() != value(reward=torch.zeros(1, 8))).all()
    assert (value() != value(last_action=1 - inputs.last_action)).all()


def test_the_last_action_is_one_hot_for_each_component() -> None:
    features = action_features(ArraySpace("multi_discrete", shape=(2,), sizes=(3, 2)))
    seen = features(torch.tensor([[[2, 0], [1, 1]]]))
    assert seen.tolist() == [[[0, 0, 1, 1, 0], [0, 1, 0, 0, 1]]]
    assert features.size == 5
    grid = action_features(ArraySpace("multi_discrete", shape=(2, 1), sizes=(3, 2)))
    assert torch.equal(grid(torch.tensor([[[[2], [0]], [[1], [1]]]])), seen)
    assert action_features(ArraySpace.discrete(3))(torch.tensor([[2, 0]])).tolist() == [[[0, 0, 1], [1, 0, 0]]]


def test_a_real_last_action_is_an_input_in_units_of_its_box_and_clipped() -> None:
    features = action_features(ArraySpace.box((2,), low=(-2.0, -float("inf")), high=(4.0, 1.0)))
    seen = features(torch.tensor([[[4.0, 3.0], [-2.0, -1e30], [1e30, 0.0]]]))
    assert seen.tolist() == [[[1.0, 3.0], [-1.0, -10.0], [10.0, 0.0]]]
    assert features.size == 2


@pytest.mark.parametrize("std", ["free", "state"])
@pytest.mark.parametrize("begin", [0.0, -1.5])
def test_a_gaussian_head_begins_at_mean_zero_and_the_deviation_asked_for(std: str, begin: float) -> None:
    env = EnvSpec("Reach-v0", ArraySpace.box((4,)), ArraySpace.box((3,), low=(-1.0,) * 3, high=(1.0,) * 3))
    net = network(env, action_std=std, action_log_std=begin)
    inputs = StepInput(
        torch.randn(2, 5, 4), torch.randn(2, 5, 3), torch.zeros(2, 5), torch.zeros(2, 5, dtype=torch.bool)
    )
    logits = net(inputs, net.initial_state(5))[0].logits
    assert logits.shape == (2, 5, 6)
    assert logits[..., :3].abs().max() < 0.1
    log_std = logits[..., 3:]
    assert (log_std - begin).abs().max() < 0.1
    assert (log_std == begin).all() == (std == "free")
    assert (log_std.std((0, 1)) > 0).all() == (std == "state")


def test_a_reward_that_is_not_a_number_shows_in_the_answer() -> None:
    net = network(CARTPOLE, **SEEN)
    inputs = steps(CARTPOLE, 1, 8, resets=0.0)._replace(reward=torch.full((1, 8), torch.nan))
    assert net(inputs, net.initial_state(8))[0].value.isnan().all()


def test_bytes_count_as_fractions_of_255() -> None:
    torso = make_torso(NetConfig(), PONG)
    obs = observations(PONG, 2)
    convolution = torch.nn.functional.conv2d(obs / 255, torso.first.weight, torso.first.bias, stride=4)
    torch.testing.assert_close(torso.first(obs.float()), convolution, rtol=1e-4, atol=1e-5)
    vector = EnvSpec("Ram-v0", ArraySpace.box((8,), "|u1"), SIX)
    mlp = make_torso(NetConfig(pixels="all"), vector)
    full = torch.full((1, 8), 255, dtype=torch.uint8)
    torch.testing.assert_close(mlp(full), torch.tanh(mlp.second(torch.tanh(mlp.first(torch.ones(1, 8))))))


@pytest.mark.parametrize("dtype", ["|u1", "|b1", "<f4"])
@pytest.mark.parametrize(
    ("sides", "channels"), [((12, 14), 3), ((12, 14), 4), ((12, 14), 8), ((7, 7), 3), ((7, 7), 25)]
)
def test_channels_may_come_first_or_last_and_stack_with_frames(
    sides: tuple[int, ...], channels: int, dtype: str
) -> None:
    net = NetConfig(pixels="all")
    last = EnvSpec("Last-v0", ArraySpace.box((*sides, channels), dtype), SIX, frame_stack=2)
    first = EnvSpec("First-v0", ArraySpace.box((channels, *sides), dtype), SIX, frame_stack=2)
    assert last.obs.image_size == first.obs.image_size == sides  # type: ignore[union-attr]
    torso = make_torso(net, last)
    twin = make_torso(net, first)
    twin.load_state_dict(torso.state_dict())
    obs = observations(last, 4)
    torch.testing.assert_close(torso(obs), twin(obs.movedim(-1, -3)))
    unaligned = torch.cat([obs.flatten()[:1], obs.flatten()])[1:].view(obs.shape)
    torch.testing.assert_close(torso(unaligned), torso(obs))
    if dtype == "<f4":
        torso(obs.requires_grad_()).sum().backward()
        assert torch.count_nonzero(obs.grad)


def test_gradients_do_not_change_the_answer_although_they_change_the_memory_layout() -> None:
    torso, obs = make_torso(NetConfig(), PONG), observations(PONG, 6)
    with torch.no_grad():
        without = torso(obs)
    torch.testing.assert_close(torso(obs), without, rtol=1e-4, atol=1e-5)


def test_an_mlps_value_does_not_train_the_torso_of_its_policy() -> None:
    net = network(CARTPOLE)
    (_, value), _ = net(steps(CARTPOLE, 4, 3), net.initial_state(3))
    value.sum().backward()
    assert all(parameter.grad is None for parameter in net.body.torsos[0].parameters())
    assert all(parameter.grad is not None for parameter in net.body.torsos[1].parameters())


@pytest.mark.parametrize(("torso", "env"), CASES)
def test_a_new_policy_is_nearly_uniform(torso: str, env: EnvSpec) -> None:
    net = network(env, torso)
    (logits, _), _ = net(steps(env, 8, 8), net.initial_state(8))
    torch.testing.assert_close(logits.softmax(-1), torch.full_like(logits, 1 / env.action.sizes[0]), rtol=0, atol=0.03)


@pytest.mark.parametrize("algo", ["impala", "dqn", "sac"])
def test_an_environment_that_needs_a_huge_network_is_refused_before_it_takes_memory(algo: str) -> None:
    action = ArraySpace.box((1,), low=(0.0,), high=(1.0,)) if algo == "sac" else SIX
    config = RunConfig.model_validate({"algo": algo, "net": {"hidden_size": 256}})
    devices: set[str] = set()
    hook = register_module_parameter_registration_hook(lambda _module, _name, made: devices.add(made.device.type))
    try:
        for size, sentence in (
            (500_000, "a network of [0-9]+,...,... parameters, expected at most 50,000,000 .net.max_parameters"),
            (4 << 20, "observations of 16777280 bytes, expected at most 16777216"),
        ):
            with pytest.raises(ConfigError, match=f"Wide-v0: {sentence}"):
                make_algorithm(config, EnvSpec("Wide-v0", ArraySpace.box((size,)), action))
    finally:
        hook.remove()
    assert devices == {"meta"}


def test_the_size_of_a_network_that_computes_with_its_weights_is_not_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Impala.network

    def network(self: Impala) -> PolicyAndValue:
        net = made(self)
        float(net.value.weight.sum())
        return net

    monkeypatch.setattr(Impala, "network", network)
    assert make_algorithm(RunConfig.model_validate({"net": {"max_parameters": 1}}), CARTPOLE).network()
