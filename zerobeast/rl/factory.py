"""Make the algorithm of a run. Each algorithm is imported only when it is asked for."""

import contextlib

import torch

from zerobeast.common.errors import ConfigError, raise_as
from zerobeast.common.settings import RunConfig
from zerobeast.common.wire import EnvSpec
from zerobeast.rl.fit import refuse_unfit
from zerobeast.rl.learning import Parts
from zerobeast.rl.memory.learning import MemoryLearning
from zerobeast.rl.nets import Network
from zerobeast.rl.protocol import Algorithm, Learning


def make_algorithm(config: RunConfig, env: EnvSpec) -> Algorithm:
    """The algorithm that `config` names, for `env`; sizes that a peer may have made up are checked without memory.

    Raises:
      ConfigError: it cannot handle these observations or actions, or they or the network are too large.
    """
    with raise_as(ConfigError, f"algo {config.section}: takes or flaw"):
        refuse_unfit(config, env)
    make = config.spec.build
    parameters = 0
    # Shapes without memory. The network of another author's algorithm may compute with its weights when it is made.
    with contextlib.suppress(Exception), torch.device("meta"):
        parameters = sum(weights.numel() for weights in make(config, env).network().parameters())
    net, among = config.net, ""
    if net.memory != "none":
        numbers = net.memory_size * (net.memory_key_size + net.core_width)
        parameters += numbers
        size = f"{4 * numbers / 2**20:,.0f} MiB of each version that is sent"
        among = f", among them {numbers:,} of net.memory_size {net.memory_size}, {size}"
    if parameters > net.max_parameters:
        limit = f"expected at most {net.max_parameters:,} (net.max_parameters)"
        raise ConfigError(
            f"{env.env_id}: a network of {parameters:,} parameters{among}, {limit}", path="net.max_parameters"
        )
    with raise_as(ConfigError, f"algo {config.section} cannot be made for {env.env_id}"):
        algorithm = make(config, env)
    if not isinstance(algorithm, Algorithm):
        what = f"{type(algorithm).__name__} {algorithm!r:.40}"
        raise ConfigError(
            f"algo {config.section} made {what}, expected an Algorithm", path="algo", value=config.section
        )
    if algorithm.policy.core_size and not config.algorithm.memory:
        why = f"because {config.section} learns from single transitions"
        raise ConfigError(
            f"net.torso {config.net.torso} has memory: expected none, {why}", path="net.torso", value=config.net.torso
        )
    return algorithm


def begin_learning(algorithm: Algorithm, config: RunConfig, net: Network) -> Learning:
    """How the algorithm trains `net`, with an episodic memory if the run has one.

    Raises:
      ConfigError: the network has no place for it, or a checkpoint cannot hold a part of how it learns.
    """
    learning = algorithm.learning(net)
    if isinstance(learning, Parts):
        learning.refuse_stateless()
    return learning if config.net.memory == "none" else MemoryLearning(learning, algorithm, config, net)
