"""The network: its settings, those of its memory, torsos and cores, and how it reads each array of an observation.

A torso is described in `zerobeast.rl.nets.torso`. Those of installed packages, our own among them, are classes or a
`TorsoSpec` under an entry point of the group `zerobeast.networks`; `net.torso` also takes a reference to either,
`module:NAME` or `folder/file.py:NAME`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import AfterValidator

from zerobeast.common import plugins
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings.facts import About
from zerobeast.common.settings.guards import CODE
from zerobeast.common.settings.section import LIMIT, OpenSection, Section, setting, whole_numbers
from zerobeast.common.wire import ArraySpace, EnvSpec, flatten

MIN_SHALLOW_SIDE = 36  #: smallest side, in pixels, of which the shallow torso's three convolutions leave at least one
#: groups of entry points
NETWORKS, CORES, MEMORIES = "zerobeast.networks", "zerobeast.cores", "zerobeast.memories"
MAX_LAYERS, MAX_WIDTH = 8, 65_536  #: of dense layers
MIN_PICTURE_SIDE = 10  #: in pixels: views of grids, which declare the range of bytes too, have up to 9 cells a side
OF_MATRICES = ("shallow", "deep", "football", "minatar")  #: our torsos that take matrices of numbers for images
MAX_CHANNELS = 16  #: of a picture: as many grey frames as `env.frame_stack` takes, or five in colour


def _part_of(group: str, *others: str) -> AfterValidator:
    """A part that an entry point of this group names, or a reference, or one of `others`."""

    def check(value: str) -> str:
        if value not in others and ":" not in value and value not in plugins.find_entry_points(group):
            raise ValueError(plugins.alternatives(group, value, others))
        return value

    return AfterValidator(check)


Torso = Annotated[str, _part_of(NETWORKS, "auto")]
Core = Annotated[str, _part_of(CORES, "none")]
Memory = Annotated[str, _part_of(MEMORIES, "none")]
WIDTHS = f"at most {MAX_LAYERS} widths such as 256,128, each from 1 to {MAX_WIDTH}"
Widths = Annotated[tuple[int, ...], whole_numbers(MAX_LAYERS, MAX_WIDTH, WIDTHS)]


class NetConfig(OpenSection):
    """The network."""

    section, chosen_by = "net", ("torso", "core")
    is_bound = True

    torso: Torso = setting(
        "auto",
        "shallow, deep, football or minatar for images, mlp for vectors, a package's torso, module:Class or "
        "file.py:Class; auto: chosen to fit the observations",
        decides=CODE,
    )
    pixels: Literal["auto", "all", "none"] = setting(
        "auto",
        "scale bytes by 1/255; auto: image-shaped bytes with bounds 0 and 255; all: all bytes, and read every matrix "
        "as an image; none: no bytes",
    )
    normalize_obs: bool = setting(
        False, "normalise observations by their running mean and standard deviation, saved with the weights"
    )
    hidden_size: int = setting(0, "width of the last dense layer; 0: the torso's default", ge=0, le=MAX_WIDTH)
    hidden_sizes: Widths = setting(
        (), "widths of the dense layers of mlp, such as 256,128; empty: two layers of width net.hidden_size"
    )
    activation: Literal["auto", "relu", "tanh", "elu", "silu", "gelu"] = setting(
        "auto", "activation of the layers before the heads; auto: the torso's default, tanh for mlp and relu otherwise"
    )
    norm: Literal["none", "layer", "batch"] = setting(
        "none",
        "normalisation of dense and convolutional layers, before their activation; layer: each example by itself; "
        "batch: over the batch, for algorithms that learn Q(s, a) of continuous actions",
    )
    residual_blocks: int = setting(
        0,
        "residual blocks of dense networks, of width net.hidden_size, in place of their layers; each widens it to four "
        "times as much",
        ge=0,
        le=MAX_LAYERS,
    )
    core: Core = setting(
        "none",
        "recurrent core after the torso: none, lstm, a package's core, module:Class or file.py:Class",
        decides=CODE,
    )
    core_width: int = setting(256, "width of the core", ge=1, le=65_536)
    memory: Memory = setting(
        "none",
        "episodic memory for the LSTM, named by the signal that selects the stored steps: momentum, knn or td_error "
        "for rare steps, uniform for random steps, a package's signal, or module:NAME; none: no memory",
        decides=CODE,
    )
    memory_size: int = setting(512, "capacity of the episodic memory, in entries", ge=1, le=1_000_000)
    memory_key_size: int = setting(32, "width of an entry's key", ge=1, le=4096)
    memory_neighbours: int = setting(
        8, "k: number of nearest entries read at each step; their average is weighted by key similarity", ge=1, le=1024
    )
    last_action_reward: Literal["auto", "always", "never"] = setting(
        "auto", "append the last action and reward to the torso's features; auto: only with a core"
    )
    action_std: Literal["free", "state"] = setting(
        "free",
        "standard deviation of continuous actions; free: parameters (Schulman et al. 2017); state: network outputs",
    )
    action_log_std: float = setting(
        0.0, "initial log standard deviation of continuous actions, in units of half the action range", ge=-4, le=1
    )
    squash_actions: bool = setting(False, "keep continuous actions within their bounds with tanh instead of clipping")
    max_parameters: int = setting(
        50_000_000,
        "maximum number of parameters, because the environment's observations determine the sizes of some layers",
        ge=1,
        le=LIMIT,
        about=About.CAPACITY,
        bound=False,
    )

    @classmethod
    def parts(cls, values: Mapping[str, Any]) -> Iterable[str]:
        """Torso and core, if they are installed ones."""
        return [part for part in cls.part_names(values) if isinstance(part, str)]

    def widths(self, own: int) -> tuple[int, ...]:
        """Of the layers of a dense network, which by default has two of width `own`, or of that in front of blocks."""
        return self.hidden_sizes or (self.hidden_size or own,) * (1 if self.residual_blocks else 2)

    @property
    def recurrent(self) -> bool:
        """Whether there is a core."""
        return self.core != "none"

    @property
    def sees_last_step(self) -> bool:
        """Whether the last action and the last reward are inputs of the network."""
        return self.last_action_reward == "always" or (self.last_action_reward == "auto" and self.recurrent)


class MemoryConfig(Section):
    """How the learner fills the episodic memory of `net.memory` (Fernandes et al. 2025, unless noted)."""

    familiar: int = setting(1024, "capacity of the familiarity buffer (FIFO), in steps", ge=2, le=100_000)
    steps_per_batch: int = setting(
        8, "steps written to the familiarity buffer from each batch, each from a different rollout", ge=1
    )
    refresh_every: int = setting(
        16,
        "batches between refreshes (an epoch of the contrastive loss, then new rarity scores and keys)",
        ge=1,
        le=LIMIT,
    )
    contrastive_rate: float = setting(1e-4, "learning rate of the contrastive loss; 0: off", ge=0, le=1)
    contrastive_temperature: float = setting(0.2, "temperature of the contrastive loss (Zhou et al. 2022)", ge=1e-3)
    negatives_below: float = setting(
        1.0,
        "cosine similarity of keys below which two entries are negatives; 1: all pairs are negatives",
        ge=-1,
        le=1,
    )
    momentum: float = setting(
        0.9, "beta of the moving average of an entry's contrastive losses; 0: only the latest loss", ge=0, lt=1
    )
    decay: float = setting(
        0.999, "decay factor of all priorities in the memory, applied each time an entry is offered", gt=0, le=1
    )
    replay_share: float = setting(
        0.0,
        "share of rollouts from the memory in each batch, sampled by priority and added to the new rollouts",
        ge=0,
        le=0.9,
    )


@dataclass(frozen=True)
class TorsoSpec:
    """A torso, with what has to be known before there is one. The launcher reads it, so its module imports no torch."""

    make: str | Callable[..., Any]  #: the class, or `module:NAME` of it
    bare: str = ""  #: the same without dense layers, for policies and critics that have their own; by default `make`
    smallest_image: int = 0  #: smallest side, in pixels, of the images that it is for; 0: it reads any observation
    threads: bool = False  #: whether its matrix products are large enough for several threads
    fills_a_core: bool = False  #: whether its learner never waits, so that workers must not be bound to cores

    def load(self, name: str, *, bare: bool = False) -> Callable[..., Any]:
        """The class, or the bare one; `name` is the value of `net.torso`.

        Raises:
          ConfigError: it cannot be imported.
        """
        make = self.bare if bare and self.bare else self.make
        make = plugins.load_reference(make, f"net.torso {name}") if isinstance(make, str) else make
        if callable(make):
            return make
        raise ConfigError(path="net.torso", value=name, expected=f"a class, got {type(make).__name__}")


@cache
def torso_of(name: str) -> TorsoSpec:
    """The torso that `net.torso` names.

    Raises:
      ConfigError: it is unknown, several packages bring one of this name, or it cannot be imported.
    """
    found = plugins.find_part(NETWORKS, name, "net.torso")
    return found if isinstance(found, TorsoSpec) else TorsoSpec(found)


def load_core(name: str) -> Callable[..., Any]:
    """The class of the core that `net.core` names (`zerobeast.rl.nets.core`).

    Raises:
      ConfigError: it is unknown, several packages bring one of this name, or it cannot be imported.
    """
    found: Any = plugins.find_part(CORES, name, "net.core")
    if callable(found):
        make: Callable[..., Any] = found
        return make
    raise ConfigError(path="net.core", value=name, expected=f"a class, got {type(found).__name__}")


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
    names = flatten({"observation": env.to_wire()["obs"]})
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
    what = "numbers" if not convolved else "image" if scale != 1.0 else "planes of numbers"
    return f"{what}, {values}, {own or ('convolutions' if convolved else 'MLP')}"
