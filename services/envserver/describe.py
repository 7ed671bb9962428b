"""`python -m zerobeast.services.envserver describe --env ID`: make environments, print the first one as JSON, and the
settings with which those of unequal sizes are equal, and the number of its agents.
"""

import json
import os
import select
import sys
from collections.abc import Callable, Sequence
from typing import Any

from zerobeast.common.config.layers import variable_of
from zerobeast.common.config.load import load
from zerobeast.common.config.table import RUN
from zerobeast.common.errors import BeastError, EnvError
from zerobeast.common.process.environ import withhold_secrets
from zerobeast.common.process.terminal import write
from zerobeast.common.settings import PADDING, EnvConfig, EnvServerConfig, RunConfig
from zerobeast.common.text import printable
from zerobeast.common.wire import EnvSpec
from zerobeast.services.envserver.backend import backend_of
from zerobeast.services.envserver.catalogue import make_vector_env
from zerobeast.services.envserver.levels import evaluated
from zerobeast.services.envserver.mix import BACKEND as MIX
from zerobeast.services.envserver.mix import Mixture
from zerobeast.services.envserver.padding import Padding, alike, refuse_unlike, sizes_of
from zerobeast.services.envserver.vector import contained

POLL_S = 0.1
UNPADDED = {"pad_obs": (), "pad_actions": 0}


def main(argv: Sequence[str]) -> int:
    return answered(argv, _described)


def answered(argv: Sequence[str], find: Callable[[RunConfig], Any]) -> int:
    """Print as JSON what is found about the environments that settings name; returns the exit code."""
    answer = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # an environment may print to stdout
    try:
        config = load(argv, os.environ)
        withhold_secrets()
        for path in RUN:  # whatever an environment starts has settings of its own
            os.environ.pop(variable_of(path), None)
        found = json.dumps(find(config))
    except BeastError as error:
        write(f"envserver: {printable(str(error))}", sys.stderr)
        return error.exit_code
    os.write(answer, found.encode())
    return 0


def _described(config: RunConfig) -> dict[str, Any]:
    given, env = Padding(config.env.pad_obs, config.env.pad_actions), config.env.model_copy(update=UNPADDED)
    made_each = [describe(env.alone(task), config.envserver) for task in env.tasks]
    specs, counts = zip(*made_each, strict=True)
    if len(set(counts)) > 1:
        listed = ", ".join(f"{count} in {spec.env_id}" for spec, count in zip(specs, counts, strict=True))
        raise EnvError(f"env.id: environments of one run need the same number of agents, which is {listed}")
    padding = alike([*map(given.of, specs)])
    spec = padding.of(given.of(specs[0]))
    made = set(map(_listed, env.tasks))
    for level in evaluated(config):
        if _listed(level) not in made:
            made.add(_listed(level))
            refuse_unlike(spec, padding.of(given.of(describe(env.alone(level), config.envserver)[0])))
    sizes = {each.env_id: sizes_of(each) for each in specs if any(padding) or any(given)}
    found = {**dict(zip(PADDING, padding, strict=True)), "agents": counts[0], "sizes": sizes}
    return spec.to_wire() | {"settings": found}


def _listed(env_id: str) -> str | tuple[str, ...]:
    """What an environment looks like depends on: its id, or the list of a mix, but not on its law."""
    return tuple(Mixture.parse(env_id).ids) if backend_of(env_id) is MIX else env_id


def describe(config: EnvConfig, server: EnvServerConfig) -> tuple[EnvSpec, int]:
    """Make an environment; returns its spec and how many agents it has.

    Raises:
      EnvError: it cannot be made.
    """
    env = make_vector_env(config, config.agents or 1, 0, server)
    try:
        with contained(f"env.id {config.id!r} cannot be made"):
            while not env.collect():
                select.select(env.files, (), (), POLL_S)
        return env.spec, env.agents
    finally:
        env.close()
        while not env.closed(force=True):  # only then have the processes that it has started ended too
            select.select((), (), (), 0.01)
