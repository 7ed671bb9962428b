"""Choice of device and number format, and what bfloat16 leaves in float32."""

from functools import partial
from pathlib import Path

import pytest
import torch

from tests.build.batches import MINATAR
from zerobeast.common.errors import ConfigError
from zerobeast.common.process.usage import multiplies_bfloat16
from zerobeast.rl.nets import precision
from zerobeast.testing.network import network, steps

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("gpus", "setting", "device"),
    [(0, "auto", "cpu"), (2, "auto", "cuda"), (2, "cuda:1", "cuda:1"), (0, "cuda", None), (2, "cuda:2", None)],
)
def test_auto_is_the_gpu_if_there_is_one_and_a_missing_device_is_refused(
    monkeypatch: pytest.MonkeyPatch, gpus: int, setting: str, device: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    if device is None:
        with pytest.raises(ConfigError, match=setting):
            precision.pick_device(setting, "broker.device")
    else:
        assert precision.pick_device(setting, "broker.device") == torch.device(device)


@pytest.mark.parametrize(
    ("features", "times_as_fast", "dtype"),
    [
        ("avx2 avx512_bf16", 1.9, torch.bfloat16),
        ("amx_tile", 1.3, torch.bfloat16),
        ("avx512_bf16", 1.2, torch.float32),
        ("avx2 avx512f", None, torch.float32),
    ],
)
def test_auto_is_bfloat16_only_if_the_cpu_is_faster_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, features: str, times_as_fast: float | None, dtype: torch.dtype
) -> None:
    def product_s(dtype: torch.dtype) -> float:
        assert times_as_fast is not None, "emulated, it would take long to find out"
        return 1.0 if dtype == torch.float32 else 1.0 / times_as_fast

    (tmp_path / "cpuinfo").write_text(f"flags\t\t: {features} xsaves")
    monkeypatch.setattr(precision, "multiplies_bfloat16", partial(multiplies_bfloat16, tmp_path / "cpuinfo"))
    monkeypatch.setattr(precision, "product_s", product_s)
    assert precision.pick_dtype("auto", CPU) == dtype
    for name in ("bfloat16", "float32"):
        assert precision.pick_dtype(name, CPU) == getattr(torch, name)


def test_autocast_in_bfloat16_is_near_and_leaves_weights_gradients_and_answers_in_float32() -> None:
    net, inputs = network("auto", MINATAR, core="lstm"), steps(MINATAR, 5, 3)
    exact, exact_core = net(inputs, net.initial_state(3))
    with precision.autocast(CPU, torch.bfloat16):
        answer, core = net(inputs, net.initial_state(3))
    assert not torch.equal(answer.value, exact.value)
    for found, expected in ((answer.logits, exact.logits), (answer.value, exact.value), (core, exact_core)):
        torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)
    (answer.logits.sum() + answer.value.sum()).backward()
    assert {parameter.dtype for parameter in net.parameters()} == {torch.float32}
    assert {parameter.grad.dtype for parameter in net.parameters() if parameter.grad is not None} == {torch.float32}
