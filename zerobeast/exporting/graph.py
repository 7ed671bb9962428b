"""The acting step of a policy as an ONNX graph, for runtimes without torch and without this program.

One greedy step of B environments; each input and output has B rows, and B is free:

    obs              as the environment sends it, [B, *frame]; with a frame stack the newest k frames, [B, k, *frame]
    last_action, last_reward, first    if the network takes them; `first`: an episode begins, the others are ignored
    action_mask      [B, choices] bool, if the environment has masks
    state            [B, size], if the policy is recurrent: zeros, then what the step before gave as `next_state`

    action           the likeliest or best one, within its bounds; choices count as the environment's own space does,
                     in a run of several environments from 0
    logits           [B, choices] unnormalised log-probabilities of all components, one after the other
    mean, stddev     of the normal distribution of real actions, which are clipped to their bounds; or, if the policy
                     squashes them (`net.squash_actions`, SAC), before a tanh whose -1 and 1 stand for the bounds
    action_values    [B, choices], of algorithms that learn such values, in the environment's units
    next_last_action real actions before they were clipped to their bounds: in training, `last_action` is that
    next_state       [B, size]

Values of several arrays have a name for each: obs.camera, action.0. Normalisation of observations is in the graph.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zerobeast.common.errors import BeastError, ConfigError, raise_as
from zerobeast.common.wire import ArraySpace, Space, nest_values
from zerobeast.common.wire.spaces import array_names
from zerobeast.playing.policy import Policy
from zerobeast.rl.nets import StepInput
from zerobeast.rl.ops.distributions import FORBIDDEN
from zerobeast.rl.ops.tree import leaves, tree_map
from zerobeast.rl.protocol import HasActionValues, HasDistribution, Sampling

OPSET = 18
ROWS, STEPS = 64, 4  #: of random inputs, with one environment and with so many; each step takes the state of the last
PARAMETERS = ("logits", "mean", "stddev")  #: of distributions
TOLERANCE = 1e-4  #: of an output, in units of its largest value, at least 1
MAX_OTHER_CHOICES = 0.01  #: share of choices that may differ, because two values are the same to rounding


class Graph(NamedTuple):
    """An exported step."""

    model: bytes  #: an ONNX file
    inputs: dict[str, str]  #: name -> type and shape
    outputs: dict[str, str]
    difference: float  #: the largest between its outputs and torch's, on random inputs


class ActingStep(nn.Module):
    """The step as a function of tensors [B, ...], in the order of `inputs` -> those of `outputs`.

    Args:
      policy: acts, on the CPU and in float32.

    Attributes:
      inputs: by name, the space, and the sizes between B and the shape of that.
      outputs: names.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.fault = f"algo {policy.config.section}: its acting step is no graph"  #: how refusals begin
        self.net, self.algorithm = policy.module, policy.algorithm
        self.env = policy.env.of_rows() if policy.config.env.sizes else policy.env
        self.unit, self.inputs = policy.unit, dict(_inputs(policy))
        self._actions = dict(_arrays("action", self.env.action))
        real = [name for name, space in self._actions.items() if space.kind == "box"]
        self._unclipped = real if policy.config.net.sees_last_step and policy.config.algorithm.sees_last_step else []
        with torch.no_grad(), raise_as(ConfigError, self.fault):
            self.outputs = list(self.compute_outputs(*self.example()))

    def example(self) -> list[Tensor]:
        """Random inputs of three environments."""
        return [torch.from_numpy(array) for array in random_inputs(self, 3, np.random.default_rng(0)).values()]

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.compute_outputs(*tensors).values())

    def compute_outputs(self, *tensors: Tensor) -> dict[str, Tensor]:
        """The outputs by name."""
        given = dict(zip(self.inputs, tensors, strict=True))
        obs, action = (
            nest_values(space, (_shift_choices(array, given[part], -1) for part, array in _arrays(name, space)))
            for name, space in (("obs", self.env.obs), ("last_action", self.env.action))
        )
        step = StepInput(obs, action, given["last_reward"], given["first"], given.get("action_mask"))
        n = given["first"].shape[0]
        core = given["state"] if self.net.core_size else self.net.initial_state(n)
        greedy = Sampling(torch.zeros(n, dtype=torch.int64), torch.Generator(), greedy=True)
        step = tree_map(lambda entry: entry[None], step)
        act, after = self.algorithm.act(self.net, step, core, greedy)
        chosen = dict(zip(self._actions, leaves(act.action), strict=True))
        found = {name: _bound_action(space, chosen[name]) for name, space in self._actions.items()}
        found |= self._distribution_outputs(step, core)
        found |= {f"next_last_{name}": chosen[name] for name in self._unclipped}
        return found | ({"next_state": after} if self.net.core_size else {})

    def _distribution_outputs(self, step: StepInput, core: Tensor) -> dict[str, Tensor]:
        """What actions are drawn by, or how they are valued, as far as the algorithm has that."""
        algorithm = self.algorithm
        if isinstance(algorithm, HasActionValues):
            return {"action_values": self.unit * algorithm.action_values(self.net, step, core)}
        whole = algorithm.distribution(self.net, step, core) if isinstance(algorithm, HasDistribution) else None
        parts = [whole] if isinstance(self.env.action, ArraySpace) else getattr(whole, "parts", ())
        return {
            name.replace("action", kind, 1): getattr(part, kind)
            for name, part in zip(self._actions, parts, strict=False)
            for kind in PARAMETERS
            if hasattr(part, kind)
        }


def export_graph(policy: Policy) -> Graph:
    """The graph of a policy's step, after a comparison with torch.

    Raises:
      ConfigError: the algorithm or the network has a step that is no such graph, or another result than in torch.
    """
    import onnxruntime  # noqa: F401 - it is missed before the work

    step = ActingStep(policy).eval()  # whose first step is none of a trace: networks keep constants of it
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns about packages that no network here needs
    example = tuple(step.example())
    names: dict[str, Any] = {"input_names": list(step.inputs), "output_names": step.outputs}
    shapes = (tuple({0: "B"} for _ in example),)
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            program = torch.onnx.export(
                step, example, dynamo=True, verbose=False, opset_version=OPSET, dynamic_shapes=shapes, **names
            )
    except (BeastError, ImportError, MemoryError):
        raise
    except Exception as error:  # whatever the code of an algorithm makes the exporter raise
        raise ConfigError(f"{step.fault} of tensors: {_reason(error)}") from error
    assert program is not None, "no file was asked for"
    graph = program.model.graph
    for value in [value for value in graph.inputs if not value.uses()]:
        graph.inputs.remove(value)
    inputs, outputs = (
        {str(value.name): _format_end(value) for value in values} for values in (graph.inputs, graph.outputs)
    )
    model = _file(program.model)
    with raise_as(ConfigError, step.fault):
        return Graph(model, inputs, outputs, compare_with_torch(step, model, set(inputs)))


def compare_with_torch(step: ActingStep, model: bytes, taken: set[str]) -> float:
    """The largest difference between a graph's outputs and torch's on random inputs, relative to the largest output.

    Args:
      step: in torch.
      model: the graph.
      taken: names of its inputs.

    Raises:
      ConfigError: it is above `TOLERANCE`, or choices, shapes or types are others.
      Exception: of onnxruntime, which cannot run the graph.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    rng, differences, choices = np.random.default_rng(1), [0.0], [np.zeros(1, np.bool_)]
    for rows in (1, ROWS):
        after: dict[str, Any] = {}
        for _ in range(STEPS):
            given = random_inputs(step, rows, rng) | after
            with torch.no_grad():
                wanted = [value.numpy() for value in step(*map(torch.from_numpy, given.values()))]
            got = session.run(step.outputs, {name: given[name] for name in taken})
            for ours, other in zip(wanted, got, strict=True):
                if ours.shape != other.shape:
                    differences.append(np.inf)
                elif ours.dtype.kind != "f":
                    choices.append(np.ravel(ours != other))
                else:
                    scale = abs(ours).max(initial=1.0, where=ours > FORBIDDEN)
                    differences.append(abs(ours - other).max() / scale)
            after = {"state": wanted[-1]} if "state" in given else {}
    difference, others = float(np.max(differences)), float(np.mean(np.concatenate(choices)))
    if not difference <= TOLERANCE or others > MAX_OTHER_CHOICES:
        found = f"outputs differ by up to {difference:.2g}, {others:.0%} of choices are others"
        raise ConfigError(f"{step.fault} that gives the same as torch: {found}")
    return difference


def random_inputs(step: ActingStep, rows: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Random inputs of so many environments; every choice of a mask is legal with a probability of 3/4."""
    found = {}
    for name, (space, lead) in step.inputs.items():
        shape, dtype = (rows, *lead, *space.shape), np.dtype(space.dtype)
        if dtype.kind == "b":
            values: Any = rng.random(shape) < (0.75 if name == "action_mask" else 0.5)
        elif space.choices:
            values = space.own(rng.integers(0, np.reshape(space.choices, space.shape), shape))
        elif dtype.kind in "iu":
            values = rng.integers(0, min(255, np.iinfo(dtype).max) + 1, shape)
        else:
            values = rng.normal(size=shape)
        found[name] = np.asarray(values).astype(dtype)
    return found


def _inputs(policy: Policy) -> Iterator[tuple[str, tuple[ArraySpace, tuple[int, ...]]]]:
    env, size = policy.env, policy.module.core_size
    yield from ((name, (space, env.stack)) for name, space in _arrays("obs", env.obs))
    yield from ((name, (space, ())) for name, space in _arrays("last_action", env.action))
    yield "last_reward", (ArraySpace.box(()), ())
    yield "first", (ArraySpace("multi_binary", "|b1"), ())
    if env.action_mask:
        yield "action_mask", (ArraySpace("multi_binary", "|b1", (env.mask_size,)), ())
    if size:
        yield "state", (ArraySpace.box((size,)), ())


def _arrays(name: str, space: Space) -> Iterator[tuple[str, ArraySpace]]:
    """The name and the space of each array, in order."""
    return zip(array_names(space, f"{name}."), space.arrays, strict=True)


def _shift_choices(space: ArraySpace, values: Tensor, sign: int) -> Tensor:
    """Choices of an environment as those that count from 0 (-1), or the inverse (1)."""
    return values + sign * torch.tensor(space.start, dtype=values.dtype).view(space.shape) if space.start else values


def _bound_action(space: ArraySpace, action: Tensor) -> Tensor:
    """An action as environments get it."""
    if space.kind != "box":
        return _shift_choices(space, action, 1)
    low, high = (torch.from_numpy(bound.astype(np.float32)) for bound in space.bounds)
    return torch.minimum(torch.maximum(action.float(), low), high)


def _file(model: Any) -> bytes:
    """The file of a model, without the names of this machine's files that the exporter leaves at its nodes."""
    from onnx_ir import to_proto
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    ClearMetadataAndDocStringPass()(model)
    file: bytes = to_proto(model).SerializeToString()
    return file


def _format_end(value: Any) -> str:
    """Type and shape of an end of a graph."""
    sizes = ", ".join(["B", *map(str, list(value.shape)[1:])])
    return f"{value.dtype.numpy().name} [{sizes}]"


def _reason(error: BaseException) -> str:
    """The first words of what made the exporter fail, without its own advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in f"{type(error).__name__}: {error}".splitlines() if line.strip()]
    return " ".join(lines[:2])[:300]
