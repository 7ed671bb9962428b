"""Which device and number format a process computes with.

Losses, V-trace, logits, values and recurrent state are float32 everywhere; bfloat16 is for convolutions and dense
layers, with float32 master weights in the learner.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch

from zerobeast.common.errors import ConfigError
from zerobeast.common.process.usage import multiplies_bfloat16
from zerobeast.common.settings.run import Precision

_SIZE, _PRODUCTS = 256, 15  #: rows and columns of the matrices, and how many products are timed in each format
_MIN_SPEEDUP = 1.25  #: minimum speed-up over float32: a smaller one is not worth the lost digits


@contextmanager
def use_float32() -> Iterator[None]:
    """Make that torch's default type, whatever a program has set: networks are in it and compute with it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def seed_weights(seed: int) -> Iterator[None]:
    """Draw weights that depend on this seed alone."""
    with use_float32(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def pick_device(setting: str, path: str) -> torch.device:
    """The device that "auto", "cpu", "cuda" or "cuda:N" means on this machine.

    Args:
      setting: one of these.
      path: of the setting, for error messages.

    Raises:
      ConfigError: the machine has no such GPU.
    """
    n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if setting == "auto":
        return torch.device("cuda" if n_gpus else "cpu")
    if setting != "cpu" and int(setting.partition(":")[2] or 0) >= n_gpus:
        known = f"auto, cpu or cuda:0 to cuda:{n_gpus - 1}" if n_gpus else "auto or cpu"
        has = f"this machine has {n_gpus} CUDA devices that torch can use"
        raise ConfigError(f"{path} {setting!r}: {has}, expected {known}")
    return torch.device(setting)


def pick_dtype(setting: Precision, device: torch.device) -> torch.dtype:
    """The number format that `setting` means on `device`."""
    if setting == "auto":
        return torch.bfloat16 if fast_bfloat16(device) else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[setting]


def fast_bfloat16(device: torch.device) -> bool:
    """Whether the device is faster in bfloat16. Each process measures its CPU once, which takes about 40 ms.

    Having the instructions is not enough: Zen 4 and 5 gain from them, but a Xeon that has those of AVX-512 and no AMX,
    as a virtual machine may, takes twice as long as in float32.
    """
    if device.type == "cuda":
        return native_bfloat16(device)
    return native_bfloat16(device) and product_s(torch.bfloat16) * _MIN_SPEEDUP < product_s(torch.float32)


def native_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for bfloat16."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return multiplies_bfloat16()


@cache
def product_s(dtype: torch.dtype) -> float:
    """Seconds that a matrix product takes on one core: the shortest time, when the core had no other work.

    Several threads would wait for each other if a core had other work.
    """
    matrix = torch.full((_SIZE, _SIZE), 0.5, dtype=dtype)
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    times = []
    for _ in range(_PRODUCTS):
        begun = time.perf_counter()
        torch.mm(matrix, matrix)
        times.append(time.perf_counter() - begun)
    torch.set_num_threads(n_threads)
    return min(times)


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which everything computes in the format of its inputs; free if autocast is off already."""
    return torch.autocast(device.type, enabled=False) if torch.is_autocast_enabled(device.type) else nullcontext()


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """A context in which convolutions and matmuls compute in `dtype`; it changes nothing for float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16)
