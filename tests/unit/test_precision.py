"""Choice of device and number format, and what bfloat16 leaves in float32."""

import pytest
import torch

from zerobeast.common.errors import ConfigError
from zerobeast.common.settings.net import NetConfig
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.nets import precision
from zerobeast.rl.nets.network import StepInput

CPU = torch.device("cpu")


@pytest.fixture
def gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the machine has this many GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: request.param > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: request.param)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("gpus", "setting", "device"),
    [(0, "auto", "cpu"), (0, "cpu", "cpu"), (2, "auto", "cuda"), (2, "cpu", "cpu"), (2, "cuda:1", "cuda:1")],
    indirect=["gpus"],
)
def test_auto_is_the_gpu_if_there_is_one(setting: str, device: str) -> None:
    assert precision.pick_device(setting, "broker.device") == torch.device(device)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("gpus", "setting", "sentence"),
    [
        (0, "cuda", "device 'cuda': this machine has 0 CUDA devices .*expected auto or cpu"),
        (0, "cuda:0", "device 'cuda:0': this machine has 0 CUDA devices .*expected auto or cpu"),
        (2, "cuda:2", r"has 2 CUDA devices .* expected auto, cpu or cuda:0 to cuda:1"),
    ],
    indirect=["gpus"],
)
def test_a_missing_device_is_refused_with_a_sentence(setting: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        precision.pick_device(setting, "broker.device")


@pytest.mark.parametrize(
    ("features", "times_as_fast", "dtype"),
    [
        ({"avx512_bf16": True}, 1.9, torch.bfloat16),
        ({"amx_tile": True}, 1.3, torch.bfloat16),
        ({"avx512_bf16": True}, 0.5, torch.float32),
        ({"avx512_bf16": True}, 1.2, torch.float32),
        ({"avx512_bf16": False, "avx2": True}, None, torch.float32),
        ({}, None, torch.float32),
    ],
)
def test_auto_is_bfloat16_only_where_the_cpu_is_faster_with_it(
    monkeypatch: pytest.MonkeyPatch, features: dict[str, bool], times_as_fast: float | None, dtype: torch.dtype
) -> None:
    def product_s(dtype: torch.dtype) -> float:
        assert times_as_fast is not None, "emulated, it would take long to find out"
        return 1.0 if dtype == torch.float32 else 1.0 / times_as_fast

    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
    monkeypatch.setattr(precision, "_product_s", product_s)
    assert precision.pick_dtype("auto", CPU) == dtype


def test_measuring_a_product_leaves_the_number_of_torchs_threads_unchanged() -> None:
    precision._product_s.cache_clear()
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    assert precision._product_s(torch.float32) > 0
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)


def test_a_named_format_is_taken_as_it_is() -> None:
    assert precision.pick_dtype("bfloat16", CPU) == torch.bfloat16
    assert precision.pick_dtype("float32", CPU) == torch.float32


def inputs(env: EnvSpec) -> StepInput:
    generator = torch.Generator().manual_seed(1)
    obs = torch.rand(5, 3, *env.obs.shape, generator=generator) < 0.5
    return StepInput(obs, torch.ones(5, 3, dtype=torch.int64), torch.ones(5, 3), torch.zeros(5, 3, dtype=torch.bool))


@pytest.mark.parametrize("use_lstm", [False, True])
@pytest.mark.parametrize("shape", [(10, 10, 4), (7,)])
def test_bfloat16_answers_in_float32_and_close_to_float32(shape: tuple[int, ...], use_lstm: bool) -> None:
    env = EnvSpec("x", ArraySpace.box(shape, "|b1"), ArraySpace.discrete(3))
    net = PolicyAndValue(NetConfig(use_lstm=use_lstm, lstm_size=16), env)
    torch.nn.init.normal_(net.policy.weight)
    core = net.initial_state(3)
    exact, exact_core = net(inputs(env), core)
    with precision.autocast(CPU, torch.bfloat16):
        cast, cast_core = net(inputs(env), core)
    net.lower(torch.bfloat16)
    lowered, lowered_core = net(inputs(env), core)
    for (logits, value), state in ((cast, cast_core), (lowered, lowered_core)):
        assert logits.dtype == value.dtype == state.dtype == torch.float32
        assert not torch.equal(logits, exact.logits)
        torch.testing.assert_close(logits, exact.logits, rtol=0.05, atol=0.05)
        torch.testing.assert_close(value, exact.value, rtol=0.05, atol=0.05)
        torch.testing.assert_close(state, exact_core, rtol=0.05, atol=0.05)


def test_autocast_in_bfloat16_leaves_weights_and_gradients_in_float32() -> None:
    env = EnvSpec("x", ArraySpace.box((10, 10, 4), "|b1"), ArraySpace.discrete(3))
    net = PolicyAndValue(NetConfig(), env)
    with precision.autocast(CPU, torch.bfloat16):
        (logits, value), _ = net(inputs(env), net.initial_state(3))
    (logits.sum() + value.sum()).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == parameter.dtype == torch.float32


def test_autocast_to_float32_changes_nothing() -> None:
    layer = torch.nn.Linear(8, 8)
    x = torch.randn(2, 8)
    with precision.autocast(CPU, torch.float32):
        assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))
        assert layer(x).dtype == torch.float32
