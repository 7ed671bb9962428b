"""Our own torsos, from arrays [N, (k,) *frame] to features [N, out_size], N = T B folded together.

    shallow  Nature DQN's three convolutions (Mnih et al. 2015), as TorchBeast's AtariNet
    deep     IMPALA's residual network (Espeholt et al. 2018, figure 3), without its LSTM
    football the same with a fourth section, SEED RL's for football (Espeholt et al. 2019, arXiv:1910.06591)
    minatar  one small convolution (Young & Tian 2019, appendix)
    mlp      dense tanh layers, two by default

An observation of several arrays gets a torso for each image and one MLP for all other arrays, choices as one-hots.

All but the residual torsos start with orthogonal weights of gain sqrt(2) (Huang et al. 2022, "The 37 implementation
details of PPO"): with torch's default a signal shrinks so much from layer to layer that two Atari frames look the same
to the last layer. The residual torsos keep that default; their skip connections make up for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from zerobeast.common.settings import MIN_SHALLOW_SIDE, NetConfig, Reading
from zerobeast.common.wire import ArraySpace, EnvSpec
from zerobeast.rl.nets.actions import OneHots
from zerobeast.rl.nets.dense import Activation, Dense
from zerobeast.rl.nets.normalize import ArrayNorm
from zerobeast.rl.nets.norms import MakeNorm, norm_maker
from zerobeast.rl.nets.torso import Norms, Torso

DEEP_CHANNELS = (16, 32, 32)
FOOTBALL_CHANNELS = (*DEEP_CHANNELS, 32)
DEEP_BLOCKS = 2
JOINED_SIZE = 256  #: width of the layer on top of several torsos
WORDS = {4: torch.int32, 8: torch.int64}  #: by bytes

T = TypeVar("T", bound=nn.Module)


def init_orthogonal(module: T) -> T:
    """Give layers zero biases and orthogonal weights of gain sqrt(2), which keep the size of a signal through relu."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.orthogonal_(layer.weight, math.sqrt(2))
            assert layer.bias is not None, "the layers of a torso have one"
            nn.init.zeros_(layer.bias)
    return module


def _channels_last(planes: Tensor) -> Tensor:
    """[N, C, H, W] laid out as [N, H, W, C]. Plane by plane: on a CPU torch's own way takes three times as long."""
    if planes.is_contiguous(memory_format=torch.channels_last) or planes.device.type != "cpu":
        return planes
    moved = planes.new_empty(planes.shape[0], *planes.shape[2:], planes.shape[1])
    for channel in range(planes.shape[1]):
        moved[..., channel] = planes[:, channel]
    return moved.movedim(-1, 1)


def _side_by_side(stacks: Tensor) -> Tensor:
    """[N, k, H, W, C] -> [N, k * C, H, W], laid out as [N, H, W, k * C] if that is faster than plane by plane."""
    channels = stacks.shape[-1]
    size = channels * stacks.element_size()
    if size < min(WORDS) or torch.compiler.is_exporting():
        return _channels_last(stacks.movedim(-1, 2).flatten(1, 2))
    whole = stacks.is_contiguous() and stacks.storage_offset() % channels == 0 and not stacks.is_floating_point()
    if not whole or size not in WORDS:
        return stacks.permute(0, 2, 3, 1, 4).flatten(3).movedim(-1, 1)
    pixels = stacks.view(WORDS[size])  # [N, k, H, W, 1]: each of C is copied as one word
    return pixels.permute(0, 2, 3, 1, 4).contiguous().view(stacks.dtype).flatten(3).movedim(-1, 1)


def compute_dtype(weight: Tensor) -> torch.dtype:
    """The number format of a layer with this weight: autocast's if that is on, else the weight's own."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


class PixelConv(nn.Conv2d):
    """A first convolution that scales its weights, not its far more numerous inputs: the same numbers for less work.

    This also keeps bytes exact in bfloat16.
    """

    scale: float = 1.0

    def forward(self, pictures: Tensor, scale: Tensor | None = None) -> Tensor:
        """[N, C, H, W] -> [N, C', H', W'], scaled by `scale` [] or, without one, by the layer's own."""
        weight = self.weight * (self.scale if scale is None else scale)
        scaled: Tensor = self._conv_forward(pictures, weight, self.bias)
        return scaled


def _features(layers: nn.Module, sides: Sequence[int]) -> int:
    """How many numbers these layers make of a picture, by the formula of `torch.nn.Conv2d`.

    A forward pass on the meta device would load torch's compiler: 1.3 s and 110 MB of each broker and learner.
    """
    size, channels = np.array(sides), 0
    for layer in layers.modules():
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            size = (size + 2 * np.array(layer.padding) - layer.kernel_size) // layer.stride + 1
            channels = layer.out_channels if isinstance(layer, nn.Conv2d) else channels
    return channels * int(size.prod())


class ConvTorso(Torso):
    """Convolutions, then one dense layer. Frame stacks become more channels.

    Args:
      config: names the convolutions, or has those that fit by "auto"; and the width of the dense layer.
      space: of the frames.
      frame_stack: k.
      scale: factor on the values of images.
    """

    def __init__(self, config: NetConfig, space: ArraySpace, frame_stack: int, scale: float) -> None:
        super().__init__()
        assert space.image_size is not None, "it has images"
        self._size, self._channels_first = space.image_size, space.channels_first
        self._channels = frame_stack * (math.prod(space.shape) // math.prod(self._size))
        fitting = "shallow" if min(self._size) >= MIN_SHALLOW_SIDE else "minatar"
        name = config.torso if config.torso in _CONVOLUTIONAL else fitting
        norm = norm_maker(config.norm)
        self.first, self.rest, hidden_size = _CONVOLUTIONAL[name](self._channels, config.activation, norm)
        self.first.scale = scale
        self.out_size = config.hidden_size or hidden_size
        self.dense = nn.Linear(_features(nn.Sequential(self.first, self.rest), self._size), self.out_size)
        self.norm, self.act = norm(self.out_size), Activation(config.activation)
        if name not in _RESIDUAL:
            init_orthogonal(self)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as the pictures

    def forward(self, obs: Tensor, *, norms: Norms = (None,)) -> Tensor:
        """[N, (k,) *frame] -> [N, out_size]."""
        [norm] = norms
        mean, scale = (norm.mean, norm.image_scale()) if norm else (None, None)
        features = self.rest(self.first(self._pictures(obs, compute_dtype(self.first.weight), mean), scale))
        # channels last: in that memory layout neither flattening nor its gradient copies
        hidden = self.dense(features.permute(0, 2, 3, 1).flatten(1))
        activated: Tensor = self.act(hidden if self.norm is None else self.norm(hidden))
        return activated

    def _pictures(self, obs: Tensor, dtype: torch.dtype, mean: Tensor | None) -> Tensor:
        """[N, (k,) *frame] of any dtype -> [N, channels, height, width] of `dtype`, minus the frame `mean`, if any.

        Laid out channels-last: the weight gradient of the shallow net's first layer then takes a quarter of the time
        (float32, one Zen 3 core), and its inference a tenth less.
        """
        if obs.dtype == torch.bool and not torch.compiler.is_exporting():
            obs = obs.view(torch.uint8)  # torch converts these in half the time; a graph has no such view
        if self._channels_first:
            planes = _channels_last(obs.reshape(obs.shape[0], self._channels, *self._size))
        else:
            planes = obs.movedim(-1, -3) if obs.dim() == 4 else _side_by_side(obs.flatten(1, -4))
        pictures = planes.to(dtype, memory_format=torch.channels_last)
        if mean is None:
            return pictures
        frame = (mean if self._channels_first else mean.movedim(-1, -3)).reshape(-1, *self._size)
        stack = frame.repeat(self._channels // len(frame), 1, 1)[None].to(dtype, memory_format=torch.channels_last)
        return pictures.sub_(stack) if obs.dtype != dtype else pictures - stack  # without conversion it is obs itself


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x)))), or with another activation, and with a norm before each, if there is one."""

    def __init__(self, channels: int, activation: str, norm: MakeNorm) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.act, self.act_copy = Activation(activation), Activation(activation, inplace=False)
        self.norms = nn.ModuleList(filter(None, (norm(channels), norm(channels))))

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> the same."""
        if not self.norms:
            return torch.add(x, self.second(self.act(self.first(self.act_copy(x)))))
        before, within = self.norms
        return torch.add(x, self.second(self.act(within(self.first(self.act(before(x)))))))


class FlatArray(nn.Module):
    """An array as a vector: numbers as they are, choices as one-hots.

    Args:
      space: of the array.
      frame_stack: k.
      scale: factor on numbers.
    """

    def __init__(self, space: ArraySpace, frame_stack: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.one_hots = OneHots(space.sizes) if space.sizes else None
        self._lead = 2 if frame_stack > 1 else 1
        self.size = frame_stack * (sum(space.sizes) if space.sizes else math.prod(space.shape))

    def forward(self, obs: Tensor, norm: ArrayNorm | None, dtype: torch.dtype) -> Tensor:
        """[N, (k,) *frame] -> [N, size] of `dtype`."""
        if self.one_hots is not None:
            one_hots: Tensor = self.one_hots(obs, self._lead)
            return one_hots.flatten(1).to(dtype)
        x = (obs if norm is None else norm(obs)).reshape(obs.shape[0], -1).to(dtype)
        return x * self.scale if self.scale != 1.0 and norm is None else x


class Mlp(Dense, Torso):
    """Dense layers, two of them and tanh by default, on the flattened arrays, for policy or value alone.

    Args:
      inputs: the arrays that make up an observation.
      widths: of the layers.
      config: how they are normalised and activated.
    """

    shared = False

    def __init__(self, inputs: Sequence[FlatArray], widths: Sequence[int], config: NetConfig) -> None:
        sizes = [sum(flat.size for flat in inputs), *widths]
        blocks = config.residual_blocks if widths else 0
        super().__init__(sizes, config.activation, own="tanh", norm=config.norm, blocks=blocks)
        self.out_size = sizes[-1]
        self.inputs = nn.ModuleList(inputs)
        init_orthogonal(self)

    def forward(self, *arrays: Tensor, norms: Norms = ()) -> Tensor:
        """[N, (k,) *frame] each -> [N, out_size]."""
        first = self.embed or next(iter(self.layers), None)
        weight, norms = first.weight if first else None, norms or (None,) * len(arrays)
        dtype = compute_dtype(weight) if isinstance(weight, Tensor) else torch.float32
        flat = [part(*each, dtype) for part, *each in zip(self.inputs, arrays, norms, strict=True)]
        return super().forward(flat[0] if len(flat) == 1 else torch.cat(flat, -1))


class JoinedTorso(Torso):
    """Several torsos, each with arrays of its own, whose features are side by side.

    Args:
      parts: the torsos, and the indices of the arrays that each one gets.
      hidden_size: width of a dense layer over all features; 0: there is none.
      config: how that layer is normalised and activated.
    """

    def __init__(self, parts: Sequence[tuple[Torso, Sequence[int]]], hidden_size: int, config: NetConfig) -> None:
        super().__init__()
        self.parts = nn.ModuleList(torso for torso, _ in parts)
        self._arrays = [list(numbers) for _, numbers in parts]
        width = sum(torso.out_size for torso, _ in parts)
        self.dense = init_orthogonal(nn.Linear(width, hidden_size)) if hidden_size else nn.Identity()
        self.norm = (norm_maker(config.norm)(hidden_size) if hidden_size else None) or nn.Identity()
        self.act = Activation(config.activation) if hidden_size else nn.Identity()
        self.out_size = hidden_size or width

    def forward(self, *arrays: Tensor, norms: Norms = ()) -> Tensor:
        """[N, (k,) *frame] each -> [N, out_size]."""
        norms = norms or (None,) * len(arrays)
        features = [
            torso(*(arrays[i] for i in numbers), norms=[norms[i] for i in numbers])
            for torso, numbers in zip(self.parts, self._arrays, strict=True)
        ]
        joined: Tensor = self.act(self.norm(self.dense(torch.cat(features, -1))))
        return joined


Layers = tuple[PixelConv, nn.Module, int]  #: the first layer, the rest, and the width of the dense layer by default


def build_shallow(channels: int, activation: str, norm: MakeNorm) -> Layers:
    """1.7 million parameters on stacked Atari frames."""
    act = partial(Activation, activation)
    second, third = nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)
    rest = filter(None, (norm(32), act(), second, norm(64), act(), third, norm(64), act()))
    return PixelConv(channels, 32, 8, 4), nn.Sequential(*rest), 512


def build_minatar(channels: int, activation: str, norm: MakeNorm) -> Layers:
    """16 filters of 3x3."""
    act, own_norm = Activation(activation), norm(16)
    return PixelConv(channels, 16, 3), act if own_norm is None else nn.Sequential(own_norm, act), 128


def build_residual(sections: Sequence[int], channels: int, activation: str, norm: MakeNorm) -> Layers:
    """5 convolutions in each section, 4 of them with residual connections."""
    rest = nn.Sequential()
    for index, n in enumerate(sections):
        if index:
            rest.append(nn.Conv2d(sections[index - 1], n, 3, padding=1))
        rest.append(nn.MaxPool2d(3, 2, padding=1))
        rest.extend(ResidualBlock(n, activation, norm) for _ in range(DEEP_BLOCKS))
    rest.extend(filter(None, (norm(sections[-1]), Activation(activation))))
    return PixelConv(channels, sections[0], 3, padding=1), rest, 256


_RESIDUAL = {"deep": partial(build_residual, DEEP_CHANNELS), "football": partial(build_residual, FOOTBALL_CHANNELS)}
_CONVOLUTIONAL: dict[str, Callable[[int, str, MakeNorm], Layers]] = {
    "shallow": build_shallow,
    "minatar": build_minatar,
    **_RESIDUAL,
}


def build_by_array(config: NetConfig, env: EnvSpec) -> Torso:
    """For each image a torso of the kind that `config` names or, for "auto", that fits; one MLP for the rest."""
    return _build_joined(config, env, config.widths(64), config.hidden_size or JOINED_SIZE)


def build_images_alone(config: NetConfig, env: EnvSpec) -> Torso:
    """As `build_by_array`, with all that is no image as it is, for networks that have dense layers of their own."""
    return _build_joined(config, env, (), 0)


def _build_joined(config: NetConfig, env: EnvSpec, widths: Sequence[int], hidden_size: int) -> Torso:
    """A torso for each image and an MLP of these widths for all other arrays; a layer over all, if several."""
    arrays, k = env.obs.arrays, env.frame_stack
    convolved, scales = zip(*(Reading.of(array, config) for array in arrays), strict=True)
    images = [i for i in range(len(arrays)) if convolved[i]]
    others = [i for i in range(len(arrays)) if i not in images]
    parts: list[tuple[Torso, Sequence[int]]] = [(ConvTorso(config, arrays[i], k, scales[i]), [i]) for i in images]
    if others:
        parts.append((Mlp([FlatArray(arrays[i], k, scales[i]) for i in others], widths, config), others))
    return parts[0][0] if len(parts) == 1 else JoinedTorso(parts, hidden_size, config)
