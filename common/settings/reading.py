"""How a network reads each array of an observation: by its shape and its range, unless settings say otherwise."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from zerobeast.common.settings.run import NetConfig
from zerobeast.common.wire import ArraySpace, EnvSpec, flat

MIN_PICTURE_SIDE = 10  #: in pixels: views of grids, which declare the range of bytes too, have up to 9 cells a side
OF_MATRICES = ("shallow", "deep", "minatar")  #: our torsos that take matrices of numbers for images
MAX_CHANNELS = 16  #: of a picture: as many grey frames as `env.frame_stack` takes, or five in colour


class Reading(NamedTuple):
    """What a network does with an array."""

    convolved: bool
    scale: float  #: factor on its values, before anything is known of their distribution

    @classmethod
    def of(cls, space: ArraySpace, net: NetConfig) -> Reading:
        """Bytes from 0 to 255 in the shape of an image are a picture; other arrays keep their values.

        Convolutions read pictures, stacks of them, and all other arrays of three dimensions that have the shape of an
        image. A matrix of numbers, such as a window over time, is a vector, unless `net.torso` names our convolutions.
        """
        size = space.image_size
        channels = math.prod(space.shape) // math.prod(size) if size else 0
        pixels = size is not None and min(size) >= MIN_PICTURE_SIDE and channels <= MAX_CHANNELS and space.full_bytes
        scaled = space.dtype == "|u1" if net.pixels == "all" else pixels and net.pixels == "auto"
        images = {
            2: scaled or net.pixels == "all" or net.torso in OF_MATRICES,
            3: True,
            4: scaled and net.pixels == "auto",
        }
        return cls(size is not None and images[len(space.shape)] and net.torso != "mlp", 1 / 255 if scaled else 1.0)


def readings(env: EnvSpec, net: NetConfig) -> list[str]:
    """A line for each array of an observation: its name, its shape and type, and how it is read."""
    names = flat({"observation": env.to_wire()["obs"]})
    paths = [name.removesuffix(".dtype") for name in names if name.endswith(".dtype")]
    return [
        f"{path} {'x'.join(map(str, space.shape)) or 'single'} {np.dtype(space.dtype)}: {_in_words(space, net)}"
        for path, space in zip(paths, env.obs.arrays, strict=True)
    ]


def _in_words(space: ArraySpace, net: NetConfig) -> str:
    own = "" if net.torso in (*OF_MATRICES, "auto", "mlp") else net.torso
    if space.sizes or (own and space.kind != "box"):
        return f"choices, {own or 'one-hot, MLP'}"
    convolved, scale = Reading.of(space, net)
    values = "as they are"
    if net.normalize_obs and space.kind == "box":
        values = "normalised"
    elif scale != 1.0:
        values = "scaled by 1/255"
    elif space.full_bytes:
        values = "as they are (net.pixels all would scale them by 1/255)"
    what = "numbers" if not convolved else "picture" if scale != 1.0 else "planes of numbers"
    return f"{what}, {values}, {own or ('convolutions' if convolved else 'MLP')}"
