"""The policy on its device: rows of observations in, rows of actions out.

Requests are received into `Inference.batch`, `submit(n)` computes its first n rows, and once `done()` is true the
answers are in `acts` and `cores` until the next `submit`. On the CPU `submit` returns when the answers are there. On
CUDA it returns at once: copies and kernels are queued on a stream of their own, and of two pinned host batches one
collects requests while the other is computed.

Per batch: the newest frame joins each stack, the network acts, and its recurrent state and action are kept. Rows of an
opponent are acted for by a network with frozen weights.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zerobeast.common.wire import EnvSpec, act_record, step_record
from zerobeast.rl.acting.slots import WORD, SlotState
from zerobeast.rl.nets import Network, StepInput
from zerobeast.rl.nets.checkpoint import load_model
from zerobeast.rl.nets.weights import flatten, layout_id, load_flat
from zerobeast.rl.nets.weights import module_dtypes as kinds_of
from zerobeast.rl.ops.columns import columns
from zerobeast.rl.ops.tree import first_rows, tree_map
from zerobeast.rl.protocol import Algorithm, Sampling

LATE_STEP = 2**62  #: agent steps after which no algorithm takes random first steps


class _Steps(NamedTuple):
    """Fields of step records as views of [B, row_bytes] uint8."""

    frames: Tensor  #: [B, words] int64
    reward: Tensor  #: [B] float32
    first: Tensor  #: [B] uint8: whatever byte a peer sent, which need not be a bool
    action_mask: Tensor | None  #: [B, choices] uint8, likewise; None if the environment has none

    @classmethod
    def of(cls, rows: Tensor, env: EnvSpec) -> _Steps:
        record = step_record(env).dtype
        fields = columns(rows, record)
        frames = rows.view(torch.int64)[:, : -(-record["obs"].itemsize // WORD)]  # the first field
        mask = fields["action_mask"].view(torch.uint8) if env.action_mask else None
        return cls(frames, fields["reward"], fields["first"].view(torch.uint8), mask)


class HostBatch:
    """Memory that requests are received into."""

    def __init__(self, env: EnvSpec, max_rows: int, *, pinned: bool) -> None:
        row_bytes = step_record(env).row_bytes
        self.rows_tensor = torch.zeros(max_rows, row_bytes, dtype=torch.uint8, pin_memory=pinned)
        self.slots_tensor = torch.zeros(max_rows, dtype=torch.int64, pin_memory=pinned)
        steps = _Steps.of(self.rows_tensor, env)
        self.steps = first_rows(steps)
        self.rows: NDArray[np.uint8] = self.rows_tensor.numpy()  #: [max_rows, row_bytes], the step records as received
        self.slots: NDArray[np.int64] = self.slots_tensor.numpy()  #: [max_rows], which slot each row belongs to
        self.first: NDArray[np.uint8] = steps.first.numpy()  #: [max_rows], a view of their field `first`
        self.sides: NDArray[np.int64] = np.zeros(max_rows, np.int64)  #: [max_rows], the number of the network that acts


class Inference:
    """One algorithm's policy, and the state of every environment that it acts in.

    Args:
      max_rows: largest batch.
      dtype: of the forward pass.
      seed: for drawing actions.

    Raises:
      RuntimeError: from torch, if the network cannot act on observations of this shape.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        max_rows: int,
        device: torch.device,
        dtype: torch.dtype,
        seed: int,
    ) -> None:
        self.algorithm, self.device, self._dtype = algorithm, device, dtype
        env, core_size = algorithm.env, algorithm.policy.core_size
        answers = act_record(env, algorithm.policy)
        cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if cuda else None  # type: ignore[no-untyped-call]
        self._finished = torch.cuda.Event() if cuda else None  # type: ignore[no-untyped-call]
        self._advanced = 0  #: agent steps beyond those of the weights
        self._opponents: dict[int, Network] = {}  #: networks with frozen weights, by numbers from 1
        self._greedy = False  #: whether these act so
        #: where requests are received now, and later
        self.batch, self._other = (HostBatch(env, max_rows, pinned=cuda) for _ in range(2))
        self._acts = torch.zeros(max_rows, answers.row_bytes, dtype=torch.uint8, pin_memory=cuda)
        self._cores = torch.zeros(max_rows, core_size, pin_memory=cuda)
        self.acts: NDArray[np.uint8] = self._acts.numpy()
        self.cores: NDArray[np.float32] = self._cores.numpy()
        with self._on_stream():
            self.net = algorithm.network().to(device).eval()
            self.net.lower(dtype)  # the format of the weights decides the format of the forward pass
            self._state = SlotState(env, core_size, max_rows, device)
            self._generator = torch.Generator(device).manual_seed(seed)
            # device copies of the host's memory; on the CPU that memory itself
            self._device_rows = torch.zeros_like(self.batch.rows_tensor, device=device) if cuda else None
            self._device_steps = None if self._device_rows is None else first_rows(_Steps.of(self._device_rows, env))
            self._device_acts = torch.zeros_like(self._acts, device=device) if cuda else self._acts
            self._columns = first_rows(columns(self._device_acts, answers.dtype))
        self.layout_id = layout_id(self.net)
        self.weights_bytes = flatten(self.net).nbytes
        self._kinds = kinds_of(self.net)
        self.bytes_per_slot = self._state.bytes_per_slot()  #: memory that one more environment takes
        # run once on an empty observation: what cannot work fails here, not on a client's request
        self.reserve(1)
        self.submit(1, with_cores=True)
        if self._finished is not None:
            self._finished.synchronize()

    def reserve(self, slots: int) -> None:
        """Make room for slot numbers below `slots`."""
        with self._on_stream():
            self._state.reserve(slots)

    def load(self, weights: NDArray[np.uint8], *, as_kept: bool = False) -> None:
        """Load weights, in the formats of `net` if `as_kept`, else as sent; a batch under way keeps the old ones."""
        with self._on_stream():
            load_flat(self.net, weights, self._kinds if as_kept else None)
        self._advanced = 0

    def advance(self, agent_steps: int) -> None:
        """Explore as after this many agent steps of the run, if the weights are from before."""
        if agent_steps > self._advanced:
            self._advanced = agent_steps
            with self._on_stream():
                self.net.agent_steps.clamp_(min=agent_steps)

    def oppose(self, number: int, path: Path, model: dict[str, Any], *, greedy: bool) -> None:
        """Act with these weights, of the checkpoint at `path`, for rows of this side from now on.

        `greedy`: by the likeliest or best action, without exploration, as all opponents.

        Raises:
          CheckpointError: they are of another network.
        """
        with self._on_stream():
            net = self.algorithm.network()
            load_model(path, net, model, "expected that of this run")
            net.agent_steps.fill_(LATE_STEP)
            net = net.to(self.device).eval()
            net.lower(self._dtype)
            self._opponents[number], self._greedy = net, greedy

    def reseed(self, seed: int) -> None:
        """From here on draw actions like a policy that was made with this seed."""
        self._generator.manual_seed(seed)

    def submit(self, n: int, *, with_cores: bool) -> None:
        """Compute the first n rows of `batch`, and make the other batch `batch`. Only after `done`.

        `with_cores` also fills `cores`, the recurrent state before each observation.
        """
        host, self.batch, self._other = self.batch, self._other, self.batch
        with self._on_stream(), torch.inference_mode():
            steps, slots = host.steps, host.slots_tensor[:n]
            if self._device_rows is not None and self._device_steps is not None:
                self._device_rows[:n].copy_(host.rows_tensor[:n], non_blocking=True)
                steps, slots = self._device_steps, slots.to(self.device, non_blocking=True)
            core = self._act_by_sides(steps(n), slots, host.sides[:n])
            if self._device_rows is not None:
                self._acts[:n].copy_(self._device_acts[:n], non_blocking=True)
            if with_cores:
                self._cores[:n].copy_(core, non_blocking=True)
            if self._finished is not None:
                self._finished.record()

    def done(self) -> bool:
        """Whether the answers of the last `submit` are there."""
        return self._finished is None or bool(self._finished.query())  # type: ignore[no-untyped-call]

    def _act_by_sides(self, steps: _Steps, slots: Tensor, sides: NDArray[np.int64]) -> Tensor:
        """Fill the first rows of the answers; return the recurrent states before these steps."""
        answers = self._columns(len(slots))
        if not self._opponents:
            return self._act(self.net, steps, slots, partial(tree_map, Tensor.copy_, answers))
        cores = torch.zeros(len(slots), self.cores.shape[1], device=self.device)
        for side in np.unique(sides).tolist():
            rows = torch.from_numpy(np.flatnonzero(sides == side)).to(self.device)
            part: _Steps = tree_map(lambda field, rows=rows: field[rows], steps)
            put = partial(tree_map, partial(_put, rows), answers)
            cores[rows] = self._act(self._opponents.get(side, self.net), part, slots[rows], put)
        return cores

    def _act(self, net: Network, steps: _Steps, slots: Tensor, put: Callable[[Any], Any]) -> Tensor:
        first = steps.first != 0
        obs = self._state.push(slots, steps.frames, first)
        last_action, core = self._state.recall(slots, first)
        mask = None if steps.action_mask is None else steps.action_mask != 0
        inputs = tree_map(lambda entry: entry[None], StepInput(obs, last_action, steps.reward, first, mask))
        greedy = self._greedy and net is not self.net
        act, after = self.algorithm.act(net, inputs, core, Sampling(slots, self._generator, greedy))
        self._state.remember(slots, act.action, after.float())
        put({"action": act.action, **act.extras})
        return core

    def _on_stream(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def _put(rows: Tensor, column: Tensor, values: Tensor) -> None:
    column[rows] = values.to(column.dtype)
