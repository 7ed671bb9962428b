"""Whether a graph computes what torch does: both get random inputs, one environment and many, step after step."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zerobeast.common.plugins import calling
from zerobeast.common.wire import ArraySpace

ROWS, STEPS = 64, 4  #: each step takes the state that the one before gave
HUGE = 1e20
Arrays = dict[str, NDArray[Any]]
Spaces = dict[str, tuple[ArraySpace, tuple[int, ...]]]  #: of inputs by name, and the sizes between B and the shape


def compare(
    step: Callable[..., tuple[Tensor, ...]], spaces: Spaces, names: list[str], model: bytes, taken: set[str]
) -> tuple[float, int, int]:
    """How far a graph's outputs are from torch's: the largest difference, choices, and how many of them are others.

    Args:
      step: in torch, a function of tensors.
      spaces: of its inputs, in order.
      names: of its outputs.
      model: the graph.
      taken: names of its inputs.
    """
    run = _runtime(model)
    rng, largest, choices, others = np.random.default_rng(1), 0.0, 0, 0
    for rows in (1, ROWS):
        before: tuple[Any, Any] | None = None
        for _ in range(STEPS):
            given = random_inputs(spaces, rows, rng)
            theirs = dict(given)
            if before is not None:
                given["state"], theirs["state"] = before
            with torch.no_grad():
                wanted = [value.numpy() for value in step(*map(torch.from_numpy, given.values()))]
            got = run(names, {name: theirs[name] for name in taken})
            for ours, other in zip(wanted, got, strict=True):
                if ours.shape != other.shape or ours.dtype != other.dtype:
                    return float("inf"), choices, others
                if np.issubdtype(ours.dtype, np.floating):
                    largest = float(np.maximum(largest, _difference(ours, other)))  # NaN, if there is one
                else:
                    choices, others = choices + ours.size, others + int((ours != other).sum())
            if "state" in given:
                before = (wanted[-1], got[-1])
    return largest, choices, others


def _difference(ours: NDArray[Any], other: NDArray[Any]) -> float:
    """The largest difference, in units of the largest number, at least 1; of huge ones, such as the logarithms of
    probabilities of 0, in units of their own."""
    sizes = abs(ours)
    unit = max(1.0, sizes.max(initial=0.0, where=sizes < HUGE))
    return float((abs(ours - other) / np.maximum(sizes, unit)).max(initial=0.0))


def _runtime(model: bytes) -> Callable[[list[str], Arrays], list[NDArray[Any]]]:
    """A function from names of outputs, and inputs, to these outputs; it raises ConfigError if the graph cannot run."""
    import onnxruntime

    def run(names: list[str], given: Arrays) -> list[NDArray[Any]]:
        with calling("onnxruntime does not run the graph"):
            outputs: list[NDArray[Any]] = session.run(names, given)
        return outputs

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    with calling("onnxruntime does not read the graph"):
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return run


def random_inputs(spaces: Spaces, rows: int, rng: np.random.Generator) -> Arrays:
    """Random inputs of so many environments; every choice of a mask is legal with a probability of 3/4."""
    found = {}
    for name, (space, lead) in spaces.items():
        shape, dtype = (rows, *lead, *space.shape), np.dtype(space.dtype)
        if name == "action_mask":
            values: Any = rng.random(shape) < 0.75
        elif space.choices:
            values = rng.integers(0, np.reshape(space.choices, space.shape), shape)
        elif dtype.kind in "iu":
            values = rng.integers(0, min(255, np.iinfo(dtype).max) + 1, shape)
        else:
            values = rng.random(shape) < 0.5 if dtype.kind == "b" else rng.normal(size=shape)
        found[name] = np.asarray(values).astype(dtype)
    return found
