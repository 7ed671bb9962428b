"""From observations to features. A torso maps [N, (k,) *frame] to [N, out_size], N = T B folded together.

    shallow  Nature DQN's three convolutions (Mnih et al. 2015), as TorchBeast's AtariNet
    deep     IMPALA's residual network (Espeholt et al. 2018, figure 3), without its LSTM
    minatar  one small convolution (Young & Tian 2019, appendix)
    mlp      two dense tanh layers

All but the residual one begin orthogonal with gain sqrt(2) (Huang et al. 2022, "The 37 implementation details of
PPO"): by torch's default a signal shrinks so much from layer to layer that two Atari frames look the same to the last
one. The residual one keeps that default, which its skip connections make up for.
"""

from __future__ import annotations

import math
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn

from zerobeast.common.errors import ConfigError
from zerobeast.common.nets.images import ImageShape, compute_dtype, pixel_scale
from zerobeast.common.nets.normalize import ObsNorm
from zerobeast.common.settings.run import MIN_SHALLOW_SIDE, NetConfig
from zerobeast.common.wire.specs import EnvSpec

DEEP_CHANNELS = (16, 32, 32)
DEEP_BLOCKS = 2


class Torso(nn.Module):
    """Base of the torsos."""

    out_size: int
    #: whether policy and value share one; a small one would fit the value's large errors and neglect the policy
    shared: ClassVar[bool] = True


T = TypeVar("T", bound=nn.Module)


def orthogonal(module: T) -> T:
    """Give every layer orthogonal weights of gain sqrt(2), which keep the size of a signal through relu; no bias."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.orthogonal_(layer.weight, math.sqrt(2))
            assert layer.bias is not None, "the layers of a torso have one"
            nn.init.zeros_(layer.bias)
    return module


class PixelConv(nn.Conv2d):
    """A first convolution that scales its weights, not its many more inputs: the same numbers for less work.

    Bytes also stay exact in bfloat16 that way.
    """

    scale: float = 1.0

    def forward(self, pictures: Tensor, scale: Tensor | None = None) -> Tensor:
        """[N, C, H, W] -> [N, C', H', W'], scaled by `scale` [] or, without one, by the layer's own."""
        weight = self.weight * (self.scale if scale is None else scale)
        scaled: Tensor = self._conv_forward(pictures, weight, self.bias)
        return scaled


class ConvTorso(Torso):
    """Convolutions, then one dense layer.

    Args:
      env: whose pictures to look at.
      image: their shape.
      first: the first layer, which takes bytes.
      rest: the layers behind it, relu included.
      hidden_size: width of the dense layer.
    """

    def __init__(self, env: EnvSpec, image: ImageShape, first: PixelConv, rest: nn.Module, hidden_size: int) -> None:
        super().__init__()
        self.image = image
        self.first = first
        self.first.scale = pixel_scale(env)
        self.rest = rest
        self.out_size = hidden_size
        self.dense = nn.Linear(math.prod(self._feature_shape()), hidden_size)

    def _feature_shape(self) -> tuple[int, ...]:
        probe = self.first.weight.new_zeros(1, self.image.channels, self.image.height, self.image.width)
        return tuple(self.rest(self.first(probe)).shape[1:])

    def forward(self, obs: Tensor, norm: ObsNorm | None = None) -> Tensor:
        """[N, (k,) *frame] -> [N, out_size]."""
        mean, scale = (norm.mean, norm.image_scale()) if norm else (None, None)
        features = self.rest(self.first(self.image.pictures(obs, compute_dtype(self.first.weight), mean), scale))
        # channels last: with that memory layout neither the fold nor its gradient copies
        return torch.relu_(self.dense(features.permute(0, 2, 3, 1).flatten(1)))


class ResidualBlock(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> the same."""
        return torch.add(x, self.second(torch.relu_(self.first(torch.relu(x)))))


class Mlp(Torso):
    """Two dense tanh layers on the flattened observation, for policy or value alone."""

    shared = False

    def __init__(self, env: EnvSpec, hidden_size: int) -> None:
        super().__init__()
        self.scale = pixel_scale(env)
        self.first = nn.Linear(env.frame_stack * math.prod(env.obs_shape), hidden_size)
        self.second = nn.Linear(hidden_size, hidden_size)
        orthogonal(self)
        self.out_size = hidden_size

    def forward(self, obs: Tensor, norm: ObsNorm | None = None) -> Tensor:
        """[N, (k,) *frame] -> [N, out_size]."""
        x = (obs if norm is None else norm(obs)).reshape(len(obs), -1).to(compute_dtype(self.first.weight))
        x = x * self.scale if self.scale != 1.0 and norm is None else x
        return torch.tanh_(self.second(torch.tanh_(self.first(x))))


def shallow(env: EnvSpec, image: ImageShape, hidden_size: int) -> Torso:
    """1.7 million parameters on stacked Atari frames."""
    if min(image.height, image.width) < MIN_SHALLOW_SIDE:
        raise _unfit("shallow", env, f"pictures of at least {MIN_SHALLOW_SIDE}x{MIN_SHALLOW_SIDE}")
    rest = nn.Sequential(
        nn.ReLU(inplace=True),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(inplace=True),
        nn.Conv2d(64, 64, 3, 1),
        nn.ReLU(inplace=True),
    )
    return orthogonal(ConvTorso(env, image, PixelConv(image.channels, 32, 8, 4), rest, hidden_size or 512))


def deep(env: EnvSpec, image: ImageShape, hidden_size: int) -> Torso:
    """15 convolutions with residual connections."""
    rest = nn.Sequential()
    for index, channels in enumerate(DEEP_CHANNELS):
        if index:
            rest.append(nn.Conv2d(DEEP_CHANNELS[index - 1], channels, 3, padding=1))
        rest.append(nn.MaxPool2d(3, 2, padding=1))
        rest.extend(ResidualBlock(channels) for _ in range(DEEP_BLOCKS))
    rest.append(nn.ReLU(inplace=True))
    return ConvTorso(env, image, PixelConv(image.channels, DEEP_CHANNELS[0], 3, padding=1), rest, hidden_size or 256)


def minatar(env: EnvSpec, image: ImageShape, hidden_size: int) -> Torso:
    """16 filters of 3x3 and a dense layer of 128."""
    torso = ConvTorso(env, image, PixelConv(image.channels, 16, 3), nn.ReLU(inplace=True), hidden_size or 128)
    return orthogonal(torso)


_CONVOLUTIONAL = {"shallow": shallow, "deep": deep, "minatar": minatar}


def make_torso(config: NetConfig, env: EnvSpec) -> Torso:
    """Build the torso that `config` names, or for "auto" the one that fits the observations.

    Raises:
      ConfigError: the named torso cannot take what the environment sends.
    """
    image = ImageShape.of(env)
    name = config.torso if config.torso != "auto" else _fitting(image)
    if name == "mlp":
        return Mlp(env, config.hidden_size or 64)
    if image is None:
        raise _unfit(name, env, "pictures")
    torso = _CONVOLUTIONAL[name](env, image, config.hidden_size)
    return torso.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]  # as the pictures


def _fitting(image: ImageShape | None) -> str:
    if image is None:
        return "mlp"
    return "shallow" if min(image.height, image.width) >= MIN_SHALLOW_SIDE else "minatar"


def _unfit(torso: str, env: EnvSpec, wanted: str) -> ConfigError:
    shape = "x".join(map(str, env.obs_shape)) or "single number"
    return ConfigError(f"net.torso {torso!r} needs {wanted}, but {env.env_id} sends frames of {shape}")
