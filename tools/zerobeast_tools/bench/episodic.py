"""Episodic memory: how well each rarity signal ranks rare observations, and the cost of the memory as it grows.

Observations of random play are labelled by a number in the final info of their episode, such as the map of Zipf's
Gridworld. A good signal has its largest means for the labels with the fewest observations: a rank correlation of -1.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zerobeast.common.errors import ConfigError
from zerobeast.common.settings import RunConfig
from zerobeast.common.wire import ArraySpace, EnvSpec
from zerobeast.common.wire.bits import unpack_rows
from zerobeast.common.wire.episodes import Episode
from zerobeast.rl.factory import make_algorithm
from zerobeast.rl.memory import rarity
from zerobeast.rl.memory.contrastive import Contrastive
from zerobeast.rl.memory.learning import memory_of
from zerobeast.rl.memory.rarity import Familiar
from zerobeast.rl.nets.episodic import EpisodicMemory
from zerobeast.rl.nets.weights import flatten
from zerobeast_tools.bench.figures import Figure, figure, per_second
from zerobeast_tools.bench.in_process import CPU, finish, make_envs
from zerobeast_tools.bench.options import SETTINGS, emit_figures, numeric_parser
from zerobeast_tools.throwaway_run import load_settings

SIZES = (128, 512, 2048, 8192)  #: entries
ROWS = (16, 640)  #: of a broker's batch, and of a learner's
RARE_SHARE, TOP = 0.05, 0.1  #: labels with less than this share of the observations are rare; the highest scores
MAX_COSINES = (1.0, 0.95, 0.4)  #: cosines of keys from which two observations are no negatives
PERIOD = 4  #: steps between two observations of an environment that are kept


class PlayedObservations(NamedTuple):
    """Observations of random play."""

    env: EnvSpec
    obs: Tensor  #: [n, *frame]
    labels: NDArray[np.int64]  #: [n]


def main(argv: list[str]) -> int:
    """`beast bench episodic`."""
    parser = numeric_parser("episodic", __doc__, seconds=1.0, observations=3000, epochs=12)
    parser.add_argument("--label", default="map", help="name of the number in infos; default map")
    parser.epilog = SETTINGS
    options, flags = parser.parse_known_args(argv)
    config = load_settings(["--net.core=lstm", "--net.memory=momentum", "--env=zipf/Gridworld", *flags])
    seen = observe_play(config, int(options.observations), options.label)
    emit_figures(
        [*rank_signals(config, seen, int(options.epochs)), *measure_costs(config, options.seconds)], options.json
    )
    return 0


def observe_play(config: RunConfig, n: int, label: str) -> PlayedObservations:
    """n observations of random play.

    Raises:
      ConfigError: the environment has other than single arrays and choices, or no such number in its infos.
    """
    envs = make_envs(config, 16, config.seed)
    spec = envs.spec
    if not isinstance(spec.obs, ArraySpace) or not (isinstance(spec.action, ArraySpace) and spec.action.sizes):
        raise ConfigError(
            path="env.id", value=config.env.id, expected="observations of one array, and choices as actions"
        )
    draws, obs, labels = np.random.default_rng(config.seed), list[NDArray[np.generic]](), list[int]()
    waiting: list[list[NDArray[np.generic]]] = [[] for _ in range(envs.num_envs)]  #: until their label is known
    try:
        for step in range(100 * n):
            if len(labels) >= n:
                break
            seen, over = unpack_rows(envs.rows, spec)["obs"], envs.rows["terminated"] | envs.rows["truncated"]
            if step % PERIOD == 0:
                for env in np.flatnonzero(~over).tolist():  # the episode of an end had its label in the last turn
                    waiting[env].append(seen[env].copy())
            legal = envs.rows["action_mask"] if spec.action_mask else np.ones((envs.num_envs, spec.action.sizes[0]))
            envs.step((draws.random(legal.shape) * legal).argmax(-1))
            finish(envs)
            ended = np.flatnonzero(envs.rows["terminated"] | envs.rows["truncated"])
            for env, entry in zip(ended.tolist(), envs.episodes, strict=True):
                infos = Episode(*entry).infos
                if label not in infos:
                    known = ", ".join(infos) or "an environment that has infos"
                    raise ConfigError(f"--label {label}: {config.env.id} has no such info, expected {known}")
                obs += waiting[env]
                labels += [int(infos[label])] * len(waiting[env])
                waiting[env] = []
    finally:
        envs.close()
    return PlayedObservations(spec, torch.from_numpy(np.stack(obs)), np.array(labels))


def rank_signals(config: RunConfig, seen: PlayedObservations, epochs: int) -> Iterator[Figure]:
    """Each signal's rank correlation with the number of observations, and its share of rare ones among the highest.

    Those of the contrastive loss are averaged over its epochs, in a new encoder for each way of choosing negatives.
    """
    for below in MAX_COSINES:
        own = config.model_copy(update={"memory": config.memory.model_copy(update={"negatives_below": below})})
        torch.manual_seed(config.seed)
        algorithm = make_algorithm(own, seen.env)
        body, memory = memory_of(algorithm.network(), f"net.memory {own.net.memory}")
        contrastive = Contrastive(own, algorithm.env, body, CPU)
        losses = torch.zeros(len(seen.obs))
        for epoch in range(epochs + 1):
            with torch.no_grad():
                features = body.embed(seen.obs[None])[0]
            memory.contents.centre.copy_(features.mean(0))
            keys = memory.key(features)
            if epoch in (0, epochs):
                known = Familiar(losses, keys, losses, losses, torch.zeros(len(losses)))
                if below == 1.0:
                    yield from judge_scores(f"knn, after {epoch} epochs", rarity.knn(known), seen)
            if epoch < epochs:
                found = contrastive.epoch(seen.obs, len(keys), keys)
                losses = found if epoch == 0 else config.memory.momentum * losses + (1 - config.memory.momentum) * found
        yield from judge_scores(f"momentum, negatives below {below}, after {epochs} epochs", losses, seen)
    yield from judge_scores("uniform", rarity.uniform(known), seen)


def judge_scores(what: str, scores: Tensor, seen: PlayedObservations) -> Iterator[Figure]:
    from scipy.stats import spearmanr

    labels, counts = np.unique(seen.labels, return_counts=True)
    means = [float(scores[torch.from_numpy(seen.labels == label)].mean()) for label in labels]
    yield figure(f"{what}: rank correlation", float(spearmanr(counts, means).statistic), "of -1")
    rare = np.isin(seen.labels, labels[counts < RARE_SHARE * len(seen.labels)])
    top = scores.argsort(descending=True)[: round(TOP * len(scores))].numpy()
    yield figure(
        f"{what}: rare in the top tenth", 100 * float(rare[top].mean()), "%", yardstick=100 * float(rare.mean())
    )


def measure_costs(config: RunConfig, seconds: float) -> Iterator[Figure]:
    """Retrieval and size for each number of entries."""
    net = config.net
    features = {rows: torch.randn(1, rows, 256) for rows in ROWS}
    for size in SIZES:
        own = {"memory_size": size, "memory_neighbours": min(net.memory_neighbours, size)}
        memory = EpisodicMemory(net.model_copy(update=own), feature_size=256)
        memory.contents.absent.zero_()
        torch.nn.init.normal_(memory.contents.keys)
        for rows in ROWS:
            with torch.inference_mode():
                rate = per_second(partial(_retrieve, memory, features[rows]), seconds)
            yield figure(f"{size} entries, {rows} steps: retrieval", 1e6 / rate, "us")
        yield figure(f"{size} entries: bytes of a publication", flatten(memory).nbytes, "bytes")


def _retrieve(memory: EpisodicMemory, features: Tensor) -> int:
    memory.reinstate(features)
    return 1
