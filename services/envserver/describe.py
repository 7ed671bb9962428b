"""`python -m zerobeast.services.envserver describe --env ID`: make environments, print as JSON what the first one looks
like, the settings with which those of unequal sizes are equal, the number of its agents, and what is found about those
that play for a moment: with `local.check`, all of the run whose ids do not say what they are.

`check --env ID`: let environments play for some seconds, and print what is found, [[level, sentence], ...].
`time --env ID`: print the seconds of CPU time that a step of one environment takes, or null.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from zerobeast.common.config.layers import PREFIX
from zerobeast.common.config.load import load_config
from zerobeast.common.config.preset import family_of
from zerobeast.common.errors import BeastError, EnvError
from zerobeast.common.process.environ import withhold_secrets
from zerobeast.common.process.terminal import write
from zerobeast.common.settings import PADDING, RunConfig
from zerobeast.common.text import in_line, printable
from zerobeast.services.envserver.backend import backend_of
from zerobeast.services.envserver.env_check import (
    BRIEF_CHECK_S,
    MAX_SENTENCE_LENGTH,
    NO_CHECK_S,
    THOROUGH_CHECK_S,
    Finding,
    check_env,
    time_step,
)
from zerobeast.services.envserver.levels import evaluation_envs
from zerobeast.services.envserver.mix import BACKEND as MIX
from zerobeast.services.envserver.mix import Mixture
from zerobeast.services.envserver.padding import Padding, common_padding, refuse_unlike, sizes_of

NO_PADDING = {"pad_obs": (), "pad_actions": 0}


def main(argv: Sequence[str]) -> int:
    """Print as JSON what a command, the first word, finds about the environments that settings name; returns the exit
    code.
    """
    answer = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # an environment may print to stdout
    try:
        config = load_config(argv[1:], os.environ)
        withhold_secrets()
        for name in [name for name in os.environ if name.startswith(PREFIX)]:
            del os.environ[name]  # whatever an environment starts has settings of its own
        found = json.dumps(COMMANDS[argv[0]](config))
    except BeastError as error:
        write(f"envserver: {printable(str(error))}", sys.stderr)
        return error.exit_code
    os.write(answer, found.encode())
    return 0


def _check(config: RunConfig) -> list[Finding]:
    tasks = config.env.tasks
    return _name_findings(
        tasks if len(tasks) > 1 else ("",), [check_env(config, task, THOROUGH_CHECK_S)[2] for task in tasks]
    )


def _name_findings(tasks: Iterable[str], findings: Iterable[Iterable[Finding]]) -> list[Finding]:
    prefixes = [f"{task}: " if task else "" for task in tasks]
    each = zip(prefixes, findings, strict=True)
    return [(level, in_line(prefix + text, MAX_SENTENCE_LENGTH)) for prefix, found in each for level, text in found]


def _describe(config: RunConfig) -> dict[str, Any]:
    given, tasks = Padding(config.env.pad_obs, config.env.pad_actions), config.env.tasks
    unpadded = config.model_copy(update={"env": config.env.model_copy(update=NO_PADDING)})
    seconds = [BRIEF_CHECK_S if config.local.check and not family_of(task) else NO_CHECK_S for task in tasks]
    specs, counts, findings = zip(*map(partial(check_env, unpadded), tasks, seconds), strict=True)
    if len(set(counts)) > 1:
        listed = ", ".join(f"{count} in {spec.env_id}" for spec, count in zip(specs, counts, strict=True))
        raise EnvError(f"env.id: the environments of a run need the same number of agents, but they have {listed}")
    padding = common_padding([*map(given.of, specs)])
    spec = padding.of(given.of(specs[0]))
    made = set(map(_listing_key, tasks))
    for level in evaluation_envs(config):
        if _listing_key(level) not in made:
            made.add(_listing_key(level))
            refuse_unlike(spec, padding.of(given.of(check_env(unpadded, level)[0])))
    sizes = {each.env_id: sizes_of(each) for each in specs if any(padding) or any(given)}
    found = {**dict(zip(PADDING, padding, strict=True)), "agents": counts[0], "sizes": sizes}
    return spec.to_wire() | {"settings": found, "findings": _name_findings(tasks, findings)}


def _listing_key(env_id: str) -> str | tuple[str, ...]:
    """What an environment looks like depends on: its id, or the list of a mix, but not on its law."""
    return tuple(Mixture.parse(env_id).ids) if backend_of(env_id) is MIX else env_id


def _time(config: RunConfig) -> float | None:
    return time_step(config, config.env.tasks[0])


COMMANDS: dict[str, Callable[[RunConfig], Any]] = {"describe": _describe, "check": _check, "time": _time}
