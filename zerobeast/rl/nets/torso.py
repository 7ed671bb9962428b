"""The torso: the part of a network from an observation to its features. Any package can bring one (`net.torso`):

    class Attention(nn.Module):
        shared = True                   # optional. False: policy and value get one each; so does our small `mlp`

        def __init__(self, net: NetConfig, env: EnvSpec) -> None:
            super().__init__()
            self.out_size = net.hidden_size or 64
            ...

        def forward(self, obs: Any) -> Tensor:      # [N, out_size], each row on its own
            ...

A torso reads the settings of `net`. One of a package may have settings of its own, a subclass of `NetConfig` in a
module that imports no torch, under the entry point group `zerobeast.settings.net` and the torso's name.
`obs` has N rows: a tensor [N, *shape], or a dict of tensors by name, nested as `env.obs` is; with frame stacks, each
is [N, k, *shape]. Boxes are float32, pictures scaled and numbers normalised as configured; all else is int64.
Names of parameters are those of the checkpoint. Parameters with `requires_grad` False, as of a pretrained encoder,
are saved there and never changed. Its weights stay float32; if the run computes in bfloat16, so does autocast in it.
The rules that it keeps are in `zerobeast.testing.network`.

A subclass of `zerobeast.rl.nets.body.Body` takes the place of all that is in front of the heads, memory included. A
subclass of `Torso` gets arrays as they were sent, as ours do, and images with noise, as float32, from an episodic
memory.
"""

from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from zerobeast.common.errors import ConfigError, name_subject, raise_as
from zerobeast.common.settings import NetConfig, Reading, torso_of
from zerobeast.common.wire import ArraySpace, EnvSpec, nest_values
from zerobeast.rl.nets.normalize import ArrayNorm
from zerobeast.rl.nets.norms import Norm
from zerobeast.rl.nets.precision import autocast

Norms = Sequence[ArrayNorm | None]  #: of each array


class Torso(nn.Module):
    """Base of our torsos: `forward(*arrays, norms=...)` maps arrays [N, (k,) *frame] as sent to [N, out_size]."""

    out_size: int
    #: whether policy and value share one; a small shared one would fit the value's large errors and neglect the policy
    shared: bool = True

    def lower(self, dtype: torch.dtype) -> None:
        """Compute in `dtype`, for inference: the weights are kept in it, since autocast converts them at every call.

        Norms keep theirs: they compute in float32.
        """
        for part in self.modules():
            for weights in () if isinstance(part, Norm) else part.parameters(recurse=False):
                weights.data = weights.data.to(dtype)


class ForeignTorso(Torso):
    """A torso of another package, which gets the observation as a whole.

    Args:
      torso: as described above.
      net: how arrays are read.
      env: its observations.
    """

    def __init__(self, torso: nn.Module, net: NetConfig, env: EnvSpec) -> None:
        super().__init__()
        self.torso, self._space = torso, env.obs
        self.mark = type(torso).__qualname__  #: for `layout_id`
        self.out_size, self.shared = getattr(torso, "out_size", 0), getattr(torso, "shared", True)
        self._readings = [Reading.of(array, net) for array in env.obs.arrays]
        self._dtype = torch.float32

    def lower(self, dtype: torch.dtype) -> None:
        """Compute in `dtype` by autocast: its layers may take no other weights."""
        self._dtype = dtype

    def forward(self, *arrays: Tensor, norms: Norms = ()) -> Tensor:
        """[N, (k,) *frame] each -> [N, out_size]."""
        each = zip(arrays, self._space.arrays, self._readings, norms or (None,) * len(arrays), strict=True)
        lowered = self._dtype != torch.float32
        with autocast(arrays[0].device, self._dtype) if lowered else nullcontext():
            features: Tensor = self.torso(nest_values(self._space, (_read_array(*array) for array in each)))
        return features


def _read_array(array: Tensor, space: ArraySpace, reading: Reading, norm: ArrayNorm | None) -> Tensor:
    if space.kind != "box":
        return array.long()
    if norm is None:
        return array.float() * reading.scale if reading.scale != 1.0 else array.float()
    return (array.float() - norm.mean) * norm.image_scale() if reading.convolved else norm(array)


def make_torso(net: NetConfig, env: EnvSpec, *, bare: bool = False) -> Torso:
    """Build the torso that `net` names, or the bare one, for a network with dense layers of its own.

    Raises:
      ConfigError: it is unknown, cannot be made, or does not return finite features of its size.
    """
    what = f"net.torso {net.torso}"
    with name_subject("net.torso", net.torso):
        make = torso_of(net.torso).load(net.torso, bare=bare)
        with raise_as(ConfigError, f"{what} cannot be made for {env.env_id}"):
            made = make(net, env)
        if not isinstance(made, nn.Module):
            raise ConfigError(f"{what} made {type(made).__name__}, expected a torch.nn.Module")
        torso = made if isinstance(made, Torso) else ForeignTorso(made, net, env)
        if torch.get_default_device().type != "meta":  # on which only sizes are computed
            _try(torso, env, what)
        return torso


@torch.no_grad()
def _try(torso: Torso, env: EnvSpec, what: str) -> None:
    """Raise ConfigError unless it maps observations of the smallest and of the largest numbers as it declares."""
    arrays = [_samples(array, env.stack) for array in env.obs.arrays]
    training = torso.training
    with raise_as(ConfigError, f"{what} cannot read observations of {env.env_id}"):
        features = torso.eval()(*arrays)
    torso.train(training)
    size = torso.out_size
    if not (isinstance(size, int) and size > 0):
        raise ConfigError(f"{what}: its out_size is {size!r}, expected the number of its features")
    n = len(arrays[0])
    if not isinstance(features, Tensor) or features.shape != (n, size):
        found = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ConfigError(
            f"{what}: returned {found} for {n} observations, expected [{n}, {size}] according to its out_size"
        )
    if not (features.is_floating_point() and features.isfinite().all()):
        raise ConfigError(f"{what}: features of {env.env_id} are not all finite, expected finite real numbers")


def _samples(space: ArraySpace, stack: tuple[int, ...]) -> Tensor:
    """Observations [2, (k,) *frame]: of zeros, and of the last choices, or of ones, which are 255 in bytes."""
    samples = np.zeros((2, *stack, *space.shape), space.dtype)
    largest = 255 if space.dtype == "|u1" else 1
    samples[1] = np.reshape(space.choices, space.shape) - 1 if space.choices else largest
    return torch.from_numpy(samples)
