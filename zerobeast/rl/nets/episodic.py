"""The part of an episodic memory that acts: what is remembered, how it is found again, and how it enters the core.

    q_t = (p_t - c) R / |(p_t - c) R|                   the key of a step, of its torso's features p_t
    w_i = softmax_i(q_t . k_i / 0.1)                    over the k entries whose keys are nearest
    m_t = tanh(g) * sum_i w_i h_i                       is added to the hidden state that enters the gates of the LSTM

R is a fixed random projection, c the mean of recent features, and g a gate per unit, learned, which is 0 at first: then
the network computes what it would without a memory, bit for bit. Retrieval has no gradient; the gate and the core do.

The contents are buffers, so they travel with the weights: brokers and checkpoints have the same ones as the
learner, and a target network has those from when it followed. `zerobeast.rl.memory` decides what they are.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, normalize

from zerobeast.common.settings import NetConfig
from zerobeast.rl.nets.precision import without_autocast

TEMPERATURE = 0.1  #: of the weights
EMPTY_SIMILARITY = -1e9  #: likeness of any key to a place without an entry, whose state is 0
CONTENTS_NAME = ".memory.contents."  #: in names of a state
SEED = 0  #: of R, which every process makes for itself


class Retrieval(NamedTuple):
    """The k entries with the nearest keys, for each of n queries; empty places have no weight if there is any entry."""

    places: Tensor  #: [n, k] int64
    weights: Tensor  #: [n, k] float32, which sum to 1


class Contents(nn.Module):
    """N entries. Arguments are those of `EpisodicMemory`."""

    keys: Tensor  #: [N, K] float32, of length 1
    states: Tensor  #: [N, H] float32
    priorities: Tensor  #: [N] float32, in [0, 1]: how rare each one is
    versions: Tensor  #: [N] int64, the policy_version that wrote each one
    absent: Tensor  #: [N] float32, 0 if there is an entry, else `EMPTY_SIMILARITY`
    written: Tensor  #: [] int64, how many entries were ever written
    centre: Tensor  #: [E] float32

    def __init__(self, config: NetConfig, feature_size: int) -> None:
        super().__init__()
        size = config.memory_size
        for name, shape in {
            "keys": (size, config.memory_key_size),
            "states": (size, config.core_width),
            "priorities": (size,),
            "absent": (size,),
            "centre": (feature_size,),
        }.items():
            self.register_buffer(name, torch.zeros(shape))
        for name, shape in {"versions": (size,), "written": ()}.items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.int64))
        self.clear()

    def clear(self, start: int = 0) -> None:
        """Remove the entries from this place on."""
        self.states[start:] = 0.0
        self.absent[start:] = EMPTY_SIMILARITY


def clear_contents(state: Any) -> Any:
    """A state of modules, of any depth, with the contents of each episodic memory as they are at the start."""
    if not isinstance(state, Mapping):
        return state
    return {
        name: _initial_contents(name, of) if CONTENTS_NAME in f".{name}" else clear_contents(of)
        for name, of in state.items()
    }


def _initial_contents(name: str, value: Tensor) -> Tensor:
    return torch.full_like(value, EMPTY_SIMILARITY) if name.endswith("absent") else torch.zeros_like(value)


class EpisodicMemory(nn.Module):
    """See the module.

    Args:
      config: N entries, width K of their keys, k neighbours, at most N, and width H of the core's hidden state.
      feature_size: E, of the torso's features.
    """

    projection: Tensor  #: [E, K]

    def __init__(self, config: NetConfig, feature_size: int) -> None:
        super().__init__()
        self.contents = Contents(config, feature_size)
        self.gate = nn.Parameter(torch.zeros(config.core_width))
        self._neighbours = config.memory_neighbours
        shape = (feature_size, config.memory_key_size)
        projection = np.random.default_rng(SEED).standard_normal(shape, np.float32)
        self.register_buffer("projection", torch.from_numpy(projection), persistent=False)

    def key(self, features: Tensor) -> Tensor:
        """[..., E] -> [..., K], of length 1; without gradient."""
        with torch.no_grad(), without_autocast(features.device):
            return normalize((features.float() - self.contents.centre) @ self.projection, dim=-1)

    @torch.no_grad()
    def retrieve(self, keys: Tensor) -> Retrieval:
        """The nearest entries of each of n keys [n, K]."""
        with without_autocast(keys.device):
            likeness = torch.addmm(self.contents.absent, keys, self.contents.keys.T)
        nearest = likeness.topk(self._neighbours, sorted=False)
        return Retrieval(nearest.indices, (nearest.values / TEMPERATURE).softmax(-1))

    def reinstate(self, features: Tensor) -> Tensor:
        """What the hidden states before steps gain, [T, B, E] -> [T, B, H]; with gradient of the gate alone."""
        places, weights = self.retrieve(self.key(features).flatten(0, 1))
        remembered = embedding_bag(places, self.contents.states, mode="sum", per_sample_weights=weights)
        return self.gate.tanh() * remembered.view(*features.shape[:2], -1)
