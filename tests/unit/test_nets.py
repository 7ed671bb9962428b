"""The network of an agent: its torso, how it reads observations, what it sees beside them, and what does not fit it."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from tests.build.batches import ENDLESS, HYBRID, MINATAR, REACH
from tests.build.errors import refuses
from tests.build.nets import CARTPOLE, FOOTBALL, TORSOS
from tests.helpers import ROOT
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings import NetConfig, Reading, RunConfig
from zerobeast.common.wire import ArraySpace, EnvSpec, PolicySpec
from zerobeast.common.wire.records import explain_oversize, rollout_record
from zerobeast.rl.algos.impala.algorithm import Impala
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.factory import make_algorithm
from zerobeast.rl.fit import refuse_unfit
from zerobeast.rl.nets.actions import action_features
from zerobeast.rl.nets.torso import make_torso
from zerobeast.testing.network import network, observations, steps

SIX = ArraySpace.discrete(6)
PONG = EnvSpec("PongNoFrameskip-v4", ArraySpace.box((84, 84), "|u1"), SIX, frame_stack=4, frame_skip=4)
SEEN: dict[str, Any] = {"last_action_reward": "always"}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(1)


def of_shape(*shape: int, dtype: str = "|u1", high: float = 255.0, stack: int = 1) -> EnvSpec:
    return EnvSpec("Any-v0", ArraySpace.box(shape, dtype, (0.0,), (high,)), SIX, frame_stack=stack)


def logits(net: PolicyAndValue, obs: Tensor) -> Tensor:
    answer, _ = net(steps(CARTPOLE, *obs.shape[:2])._replace(obs=obs), net.initial_state(obs.shape[1]))
    return answer.logits


def test_the_shallow_and_the_deep_net_have_torchbeasts_parameters() -> None:
    shallow, deep = (network(name, PONG, **SEEN) for name in ("shallow", "deep"))
    assert sum(parameter.numel() for parameter in shallow.parameters()) == 1_687_768
    assert sum(isinstance(module, nn.Conv2d) for module in deep.modules()) == 15
    # TorchBeast's, plus the weights from the last action's six inputs to seven outputs
    assert sum(parameter.numel() for parameter in deep.parameters()) == 1_091_038 + 6 * 7


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
    [(PONG, 3, 512), (MINATAR, 1, 128), (CARTPOLE, 0, 64), (of_shape(2, 3, dtype="<f8", stack=3), 0, 64)],
)
def test_the_torso_is_chosen_by_the_observations(env: EnvSpec, convolutions: int, width: int) -> None:
    torso = make_torso(NetConfig(), env)
    assert sum(isinstance(module, nn.Conv2d) for module in torso.modules()) == convolutions
    assert torso(observations(env, 5)).shape == (5, torso.out_size) == (5, width)


@pytest.mark.parametrize(("shape", "normalize"), [((8,), False), ((7, 7, 3), True), ((84, 84, 3), False)])
def test_bytes_that_are_no_pixels_are_read_as_floats_are(shape: tuple[int, ...], normalize: bool) -> None:
    bits, found = torch.rand(2, 3, *shape) < 0.3, []
    for dtype, kind in (("|u1", torch.uint8), ("<f4", torch.float32)):
        env = of_shape(*shape, dtype=dtype, high=1.0).for_policies()
        net = network("auto", EnvSpec.from_wire(env.to_wire()), normalize_obs=normalize)
        found.append(logits(net, bits.to(kind)))
    torch.testing.assert_close(*found)


PICTURE, PLANES, NUMBERS, FRACTIONS = (True, 1 / 255), (True, 1.0), (False, 1.0), (False, 1 / 255)


@pytest.mark.parametrize(
    ("env", "settings", "expected"),
    [
        (EnvSpec("Unbounded-v0", ArraySpace.box((3, 96, 96), "|u1"), SIX), {}, PICTURE),
        (of_shape(84, 84), {}, PICTURE),
        (of_shape(84, 84), {"torso": "mlp"}, FRACTIONS),
        (of_shape(84, 84), {"pixels": "none"}, NUMBERS),
        (of_shape(4, 96, 96, 3), {}, PICTURE),
        (of_shape(4, 96, 96, 3, high=9.0), {}, NUMBERS),
        (of_shape(4, 96, 96, 3), {"pixels": "all"}, FRACTIONS),
        (of_shape(84, 84, 3, high=9.0), {}, PLANES),
        (of_shape(9, 9, 3), {}, PLANES),
        (of_shape(30, 8, dtype="<f4"), {}, NUMBERS),
        (of_shape(30, 8, dtype="<f4"), {"pixels": "all"}, PLANES),
    ],
)
def test_shape_and_range_determine_what_an_array_is_unless_settings_do(
    env: EnvSpec, settings: dict[str, Any], expected: tuple[bool, float]
) -> None:
    assert Reading.of(EnvSpec.from_wire(env.for_policies().to_wire()).obs, NetConfig(**settings)) == expected


def test_a_stack_that_the_environment_makes_is_read_as_a_stack_of_frames_is() -> None:
    seen = torch.randint(0, 256, (2, 3, 4, 40, 40, 3), dtype=torch.uint8)
    envs = (of_shape(4, 40, 40, 3), of_shape(40, 40, 3, stack=4))
    torch.testing.assert_close(*(logits(network("auto", env, normalize_obs=True), seen) for env in envs))


def test_the_network_of_the_page_on_networks_is_one(tmp_path: Path) -> None:
    page = (ROOT / "docs/own_network.md").read_text()
    (code,) = re.findall(r"```python\n(import torch\s+class MyTorso.*?)```", page, re.DOTALL)
    (tmp_path / "my_file.py").write_text(code)
    torso = make_torso(NetConfig(torso=f"{tmp_path}/my_file.py:MyTorso", hidden_size=8), CARTPOLE)
    assert torso(observations(CARTPOLE, 5)).shape == (5, torso.out_size) == (5, 8)


@pytest.mark.parametrize(("torso", "env"), TORSOS)
def test_each_torso_begins_as_it_should_and_takes_any_activation(torso: str, env: EnvSpec) -> None:
    obs, outputs = observations(env, 3), {}
    for activation in ("auto", "relu", "tanh", "elu", "silu", "gelu"):
        torch.manual_seed(2)
        outputs[activation] = make_torso(NetConfig(torso=torso, activation=activation, hidden_size=48), env)(obs)
    own = outputs.pop("auto")
    assert own.shape == (3, 48)
    assert [name for name, out in outputs.items() if torch.equal(out, own)] == ["tanh" if torso == "mlp" else "relu"]
    for name, weight in make_torso(NetConfig(torso=torso), env).named_parameters():
        if name.endswith("weight"):
            matrix = weight.flatten(1)
            short = matrix if len(matrix) < matrix.shape[1] else matrix.T
            orthogonal = torch.allclose(short @ short.T, 2 * torch.eye(len(short)), atol=1e-4)
            assert orthogonal == (torso != "deep"), name
    net = network(torso, env)
    chances = net(steps(env, 8, 8), net.initial_state(8))[0].logits.softmax(-1)
    torch.testing.assert_close(chances, torch.full_like(chances, 1 / env.action.sizes[0]), rtol=0, atol=0.03)


def test_an_mlp_has_the_layers_that_are_asked_for_and_its_value_does_not_train_the_torso_of_its_policy() -> None:
    net = network("mlp", CARTPOLE, hidden_sizes=(7, 6, 5), hidden_size=9)
    (_, value), _ = net(steps(CARTPOLE, 4, 3), net.initial_state(3))
    value.sum().backward()
    for torso, trained in zip(net.body.torsos, (False, True), strict=True):
        assert [list(entry.shape) for entry in torso.parameters() if entry.ndim == 2] == [[7, 4], [6, 7], [5, 6]]
        assert {entry.grad is not None for entry in torso.parameters()} == {trained}


@pytest.mark.parametrize(
    ("settings", "seen"),
    [({}, False), ({"core": "lstm"}, True), (SEEN, True), ({"last_action_reward": "never", "core": "lstm"}, False)],
)
def test_last_action_and_reward_are_inputs_with_memory_or_on_request(settings: dict[str, Any], *, seen: bool) -> None:
    net = network("auto", CARTPOLE, **settings)
    inputs = steps(CARTPOLE, 1, 8, resets=0.0)._replace(reward=torch.full((1, 8), 7.0))

    def value(**changes: Tensor) -> Tensor:
        return net(inputs._replace(**changes), net.initial_state(8))[0].value

    assert (value() == value(reward=torch.zeros(1, 8))).all() != seen
    assert (value() == value(last_action=1 - inputs.last_action)).all() != seen
    assert torch.equal(value(), value(reward=torch.ones(1, 8)))
    assert value(reward=torch.full((1, 8), torch.nan)).isnan().all() == seen, "what is not a number shows"


def test_the_last_action_is_one_hot_for_each_component_or_in_units_of_its_box_and_clipped() -> None:
    grid = action_features(ArraySpace("multi_discrete", shape=(2, 1), sizes=(3, 2)))
    assert grid(torch.tensor([[[[2], [0]], [[1], [1]]]])).tolist() == [[[0, 0, 1, 1, 0], [0, 1, 0, 0, 1]]]
    assert grid.size == 5
    box = action_features(ArraySpace.box((2,), low=(-2.0, -float("inf")), high=(4.0, 1.0)))
    seen = box(torch.tensor([[[4.0, 3.0], [-2.0, -1e30], [1e30, 0.0]]]))
    assert seen.tolist() == [[[1.0, 3.0], [-1.0, -10.0], [10.0, 0.0]]]
    assert box.size == 2


@pytest.mark.parametrize("std", ["free", "state"])
def test_a_gaussian_head_begins_at_mean_zero_and_the_deviation_asked_for(std: str) -> None:
    net = network("auto", REACH, action_std=std, action_log_std=-1.5)
    mean, log_std = net(steps(REACH, 2, 5), net.initial_state(5))[0].logits.chunk(2, -1)
    assert mean.abs().max() < 0.1
    assert (log_std + 1.5).abs().max() < 0.1
    assert (log_std == -1.5).all() == (std == "free")
    assert (log_std.std((0, 1)) > 0).all() == (std == "state")


def test_bytes_count_as_fractions_of_255() -> None:
    torso, obs = make_torso(NetConfig(), PONG), observations(PONG, 2)
    convolution = nn.functional.conv2d(obs / 255, torso.first.weight, torso.first.bias, stride=4)
    torch.testing.assert_close(torso.first(obs.float()), convolution, rtol=1e-4, atol=1e-5)
    mlp = make_torso(NetConfig(pixels="all"), of_shape(8))
    full = torch.full((1, 8), 255, dtype=torch.uint8)
    torch.testing.assert_close(mlp(full), torch.tanh(mlp.second(torch.tanh(mlp.first(torch.ones(1, 8))))))


@pytest.mark.parametrize(
    ("dtype", "sides", "channels"), [("|u1", (12, 14), 3), ("|b1", (12, 14), 8), ("<f4", (7, 7), 25)]
)
def test_channels_may_come_first_or_last_and_stack_with_frames_in_any_memory_layout(
    dtype: str, sides: tuple[int, ...], channels: int
) -> None:
    net = NetConfig(pixels="all")
    last = EnvSpec("Last-v0", ArraySpace.box((*sides, channels), dtype), SIX, frame_stack=2)
    torso = make_torso(net, last)
    twin = make_torso(net, replace(last, obs=ArraySpace.box((channels, *sides), dtype)))
    twin.load_state_dict(torso.state_dict())
    obs = observations(last, 4)
    unaligned = torch.cat([obs.flatten()[:1], obs.flatten()])[1:].view(obs.shape)
    with torch.no_grad():
        without_gradients = torso(obs)
    for found in (twin(obs.movedim(-1, -3)), torso(unaligned), without_gradients):
        torch.testing.assert_close(torso(obs), found)
    if dtype == "<f4":
        torso(obs.requires_grad_()).sum().backward()
        assert torch.count_nonzero(obs.grad)


@pytest.mark.parametrize("algo", ["impala", "dqn", "sac"])
def test_an_environment_that_needs_a_huge_network_is_refused_before_it_takes_memory(algo: str) -> None:
    action = ArraySpace.box((1,), low=(0.0,), high=(1.0,)) if algo == "sac" else SIX
    config = RunConfig.model_validate({"algo": algo, "net": {"hidden_size": 256}})
    devices: set[str] = set()
    hook = register_module_parameter_registration_hook(lambda _module, _name, made: devices.add(made.device.type))
    try:
        for size in (500_000, 4 << 20):  # too many parameters, and bytes of an observation
            with refuses():
                make_algorithm(config, EnvSpec("Wide-v0", ArraySpace.box((size,)), action))
    finally:
        hook.remove()
    assert devices == {"meta"}


def test_the_size_of_a_network_that_computes_with_its_weights_is_not_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    def computing(self: Impala) -> PolicyAndValue:
        net = PolicyAndValue(self.config.net, self.env)
        float(net.value.weight.sum())
        return net

    monkeypatch.setattr(Impala, "network", computing)
    assert make_algorithm(RunConfig.model_validate({"net": {"max_parameters": 1}}), CARTPOLE).network()


ATARI = EnvSpec("Pong-v0", ArraySpace.box((84, 84), "|u1"), ArraySpace.discrete(6), 4, 4)
HUGE = EnvSpec("Huge-v0", ArraySpace.box((4096, 4096, 3), "|u1"), ArraySpace.discrete(6))


def run(algo: str, net: dict[str, Any] | None = None, **settings: Any) -> RunConfig:
    return RunConfig.model_validate({"algo": algo, "net": net or {}, algo: settings})


@pytest.mark.parametrize(
    ("config", "env", "said"),
    [
        (run("sac"), CARTPOLE, r"algo sac .* CartPole-v1 .* dqn, .* ppo"),
        (run("ddpg"), replace(REACH, action=ENDLESS), "Reach-v0 .* algo a2c, impact, "),
        (run("td3"), replace(REACH, action=HYBRID), "Reach-v0 .* algo a2c, impact, impala, "),
        (run("dqn"), REACH, "algo dqn .* algo a2c, ddpg, .*, td3, vmpo$"),
        (run("sac", {"core": "lstm"}), REACH, "net.core"),
        (run("ppo", {"squash_actions": True}), replace(REACH, action=ENDLESS), "net.squash_actions"),
        (run("sac", {"torso": "deep"}), REACH, "net.torso deep"),
        (run("a2c", {"torso": "shallow"}), MINATAR, "net.torso shallow.* minatar .*10x10x4"),
        (run("vmpo"), HUGE, "Huge-v0.* 50331712 .* 16777216"),
        (run("impala", entropy_target=2.0), CARTPOLE, r"impala.entropy_target .* 0\.6931"),
    ],
)
def test_what_cannot_be_learned_is_refused_before_a_network_is_made(config: RunConfig, env: EnvSpec, said: str) -> None:
    for refuse in (refuse_unfit, make_algorithm):  # the launcher's and the services' way
        with pytest.raises(ConfigError, match=said) as refused:
            refuse(config, env)
        assert refused.value.args[0].count("; ") == 0, "one cause is said once"


def test_rollouts_too_large_to_send_are_refused_with_the_largest_that_fit() -> None:
    assert explain_oversize(CARTPOLE, None, 20, 16) is None
    sentence = explain_oversize(ATARI, None, 1000, 64)
    assert sentence is not None
    [envs, length] = [int(way.rpartition(" ")[2]) for way in sentence.partition("at most ")[2].split(" or ")]
    assert (explain_oversize(ATARI, None, 1000, envs), explain_oversize(ATARI, None, length, 64)) == (None, None)
    assert explain_oversize(ATARI, None, 1000, envs + 1)
    assert explain_oversize(ATARI, None, length + 1, 64)
    assert rollout_record(ATARI, PolicySpec((), 0), length).row_bytes * 64 <= 256 << 20
    assert "learner.unroll_length" in str(explain_oversize(ATARI, None, 10**5, 64)), "one row of these is too large"
