"""The acting step of a policy as an ONNX graph, for runtimes without torch and without this program.

One greedy step of B environments; each input and output has B rows, and B is free:

    obs              as the environment sends it, [B, *frame]; with a frame stack the newest k frames, [B, k, *frame]
    last_action, last_reward, first    if the network takes them; `first`: an episode begins, the others are ignored
    action_mask      [B, choices] bool, if the environment has masks
    state            [B, size], if the policy is recurrent: zeros, then what the step before gave as `next_state`

    action           within its bounds; choices count from 0
    log_probs, or mean and log_std     what training draws actions from, if the algorithm has a distribution:
                                       pre_tanh_mean and pre_tanh_log_std, if the draws are squashed into the bounds
    q_values, value  if the algorithm has them
    next_last_action real actions before they were clipped to their bounds: in training, `last_action` is that
    next_state       [B, size]

Values of several arrays have a name for each: obs.camera, action.0. Normalisation of observations is in the graph.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from zerobeast.clients.policy import Policy
from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.wire import ArraySpace, CompositeSpace, Space, nested
from zerobeast.exporting.comparison import compare, random_inputs
from zerobeast.rl.nets import StepInput
from zerobeast.rl.ops.distributions import Categorical, Distribution, Independent
from zerobeast.rl.ops.gaussian import Gaussian, SquashedGaussian
from zerobeast.rl.ops.tree import leaves, tree_map
from zerobeast.rl.protocol import Sampling

OPSET = 18
TOLERANCE = 1e-4  #: of an output, in units of its largest value, at least 1
MAX_OTHER_CHOICES = 0.01  #: share of choices that may differ, because two values are the same to rounding


class Graph(NamedTuple):
    """An exported step."""

    model: bytes  #: an ONNX file
    inputs: dict[str, str]  #: name -> type and shape
    outputs: dict[str, str]
    difference: float  #: the largest between its outputs and torch's, on random inputs
    choices: int  #: how many were compared
    other_choices: int  #: how many of them were not torch's


class ActingStep(nn.Module):
    """The step as a function of tensors [B, ...], in the order of `spaces`.

    Args:
      policy: acts, on the CPU and in float32.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.net, self.algorithm, self.env = policy.module, policy.algorithm, policy.env
        self.spaces = dict(_inputs(policy))
        self._sees_last_step = policy.config.net.sees_last_step and policy.config.algorithm.sees_last_step

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Tensors in the order of `spaces` -> those of `outputs`."""
        return tuple(self.outputs(*given).values())

    def outputs(self, *given: Tensor) -> dict[str, Tensor]:
        """The same by name."""
        step, core = self._step(dict(zip(self.spaces, given, strict=True)))
        greedy = Sampling(torch.zeros(step.first.shape[1], dtype=torch.int64), torch.Generator(), greedy=True)
        act, after = self.algorithm.act(self.net, step, core, greedy)
        names, spaces = zip(*_arrays("action", self.env.action), strict=True)
        chosen = dict(zip(names, leaves(act.action), strict=True))
        found = dict(zip(names, map(_bounded, spaces, chosen.values()), strict=True))
        if of := getattr(self.algorithm, "distribution", None):
            drawn, several = of(self.net, step, core), isinstance(self.env.action, CompositeSpace)
            parts = drawn.parts if several and isinstance(drawn, Independent) else [drawn]
            for name, part in zip(names, parts, strict=True):
                found |= _parameters(part, name.removeprefix("action"))
        for name, method in (("q_values", "action_values"), ("value", "value")):
            if of := getattr(self.algorithm, method, None):
                found[name] = of(self.net, step, core)
        if self._sees_last_step:
            real = (name for name, space in zip(names, spaces, strict=True) if space.kind == "box")
            found |= {f"next_last_{name}": chosen[name] for name in real}
        return found | ({"next_state": after} if self.net.core_size else {})

    def _step(self, given: dict[str, Tensor]) -> tuple[StepInput, Tensor]:
        obs, action = (
            _tree(name, space, given) for name, space in (("obs", self.env.obs), ("last_action", self.env.action))
        )
        step = StepInput(obs, action, given["last_reward"], given["first"], given.get("action_mask"))
        core = given["state"] if self.net.core_size else self.net.initial_state(given["first"].shape[0])
        return tree_map(lambda entry: entry[None], step), core


def export(policy: Policy) -> Graph:
    """The graph of a policy's step, after a comparison with torch.

    Raises:
      ConfigError: the algorithm or the network has a step that is no such graph, or another result than in torch.
    """
    import onnxruntime  # noqa: F401 - it is missed before the work

    step = ActingStep(policy)
    what = f"algo {policy.config.section}: its acting step is no graph of tensors"
    example = [torch.from_numpy(array) for array in random_inputs(step.spaces, 3, np.random.default_rng(0)).values()]
    try:
        with torch.no_grad(), _quiet():
            names = list(step.outputs(*example))
            program = torch.onnx.export(
                step,
                tuple(example),
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=(tuple({0: "B"} for _ in example),),
                input_names=list(step.spaces),
                output_names=names,
            )
    except BeastError:
        raise
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # whatever the code of an algorithm makes the exporter raise
        raise ConfigError(f"{what}: {_reason(error)}") from error
    assert program is not None, "no file was asked for"
    graph, model = program.model.graph, _tidied(program.model)
    difference, choices, others = compare(step, step.spaces, names, model, {str(value.name) for value in graph.inputs})
    if not difference <= TOLERANCE or others > MAX_OTHER_CHOICES * choices:
        found = f"outputs differ by up to {difference:.2g}, {others} of {choices} choices are others"
        raise ConfigError(f"{what} that gives the same as torch: {found}")
    inputs, outputs = ({str(value.name): _shown(value) for value in values} for values in (graph.inputs, graph.outputs))
    return Graph(model, inputs, outputs, difference, choices, others)


def _tidied(model: Any) -> bytes:
    """The file of a model, without inputs that the network does not take and what the exporter leaves behind.

    The network is traced once for each method of the algorithm, and nodes name the files of this machine.
    """
    from onnx_ir import from_proto, to_proto
    from onnx_ir.passes import Sequential, common

    for value in [value for value in model.graph.inputs if not value.uses()]:
        model.graph.inputs.remove(value)
    tidy = Sequential(
        common.DeduplicateHashedInitializersPass(size_limit=2**40),
        common.CommonSubexpressionEliminationPass(),
        common.RemoveUnusedNodesPass(),
        common.ClearMetadataAndDocStringPass(),
    )
    plain = from_proto(to_proto(model))  # the passes want arrays that are contiguous
    tidy(plain)
    file: bytes = to_proto(plain).SerializeToString()
    return file


def _inputs(policy: Policy) -> Iterator[tuple[str, tuple[ArraySpace, tuple[int, ...]]]]:
    """Name of each input, its space, and the sizes between B and the shape of that."""
    env, size = policy.env, policy.module.core_size
    stack = (env.frame_stack,) if env.frame_stack > 1 else ()
    yield from ((name, (space, stack)) for name, space in _arrays("obs", env.obs))
    yield from ((name, (space, ())) for name, space in _arrays("last_action", env.action))
    yield "last_reward", (ArraySpace.box(()), ())
    yield "first", (ArraySpace("multi_binary", "|b1"), ())
    if env.action_mask:
        yield "action_mask", (ArraySpace("multi_binary", "|b1", (env.mask_size,)), ())
    if size:
        yield "state", (ArraySpace.box((size,)), ())


def _arrays(name: str, space: Space) -> Iterator[tuple[str, ArraySpace]]:
    """The name and the space of each array, in order."""
    if isinstance(space, ArraySpace):
        yield name, space
    else:
        for part in space.spaces:
            yield from _arrays(f"{name}.{part.name}", part.space)


def _tree(name: str, space: Space, given: dict[str, Tensor]) -> Any:
    return nested(space, (given[each] for each, _ in _arrays(name, space)))


def _bounded(space: ArraySpace, action: Tensor) -> Tensor:
    """An action as environments get it."""
    if space.kind != "box":
        return action
    low, high = (torch.from_numpy(bound.astype(np.float32)) for bound in space.bounds)
    return torch.minimum(torch.maximum(action.float(), low), high)


def _parameters(distribution: Distribution, end: str) -> dict[str, Tensor]:
    """The tensors that define a distribution, by name; none of an unknown kind."""
    if isinstance(distribution, Independent):
        found: dict[str, Tensor] = {}
        for index, part in enumerate(distribution.parts):
            found |= _parameters(part, f"{end}.{index}")
        return found
    if isinstance(distribution, Categorical):
        return {f"log_probs{end}": distribution.log_probs}
    if isinstance(distribution, Gaussian):
        before = "pre_tanh_" if isinstance(distribution, SquashedGaussian) else ""
        return {f"{before}mean{end}": distribution.mean, f"{before}log_std{end}": distribution.log_std}
    return {}


def _shown(value: Any) -> str:
    """Type and shape of an end of a graph."""
    sizes = ", ".join(["B", *map(str, list(value.shape)[1:])])
    return f"{value.dtype.numpy().name} [{sizes}]"


def _reason(error: BaseException) -> str:
    """The first words of what made the exporter fail, without its own advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in f"{type(error).__name__}: {error}".splitlines() if line.strip()]
    return " ".join(lines[:2])[:300]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's report of its progress."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
