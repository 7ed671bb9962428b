"""Backends: what makes the environments of an id. docs/environments.md shows how a package brings one, for which ids.

An id with a colon outside parentheses is a reference (`catalogue`), never a backend's.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from zerobeast.common import plugins
from zerobeast.common.errors import EnvError, raise_as
from zerobeast.common.settings import EnvConfig
from zerobeast.common.settings.guards import BACKENDS as GROUP
from zerobeast.common.text import did_you_mean
from zerobeast.services.envserver.inline import InlineEnvs
from zerobeast.services.envserver.vector import VectorEnv


class VectorRequest(NamedTuple):
    """N environments that a session asks for."""

    config: EnvConfig
    num_envs: int
    seed: int  #: environment i gets seed + i at the first reset
    threads: int  #: that may step them, at least 1
    masks: bool  #: whether some may be reset while others play on


def _no_single_environments(env_id: str, _kwargs: dict[str, Any]) -> Any:
    needed = (
        "but env.leave_out, env.options, env.agent_id, {number} in env.kwargs, action masks, several agents, mixes and "
        "masked resets need them"
    )
    raise EnvError(f"env.id {env_id!r}: its backend makes no single environments, {needed}")


@dataclass(frozen=True)
class Backend:
    """Environments of one kind. Its module imports their package only in these functions, which may raise anything.

    Attributes:
      make: makes one `gymnasium.Env`, given its id, `env.kwargs` and settings of its own, in a worker process.
      make_vec: chooses a vector environment, which is made in its `collect` and steps inside the env-server, or None if
        single ones are to be made. For environments that step in this thread: an `InlineVectorEnv` of `InlineEnvs`.
      ids: ids that an unknown one may have meant.
      make_part: makes n environments that step together in a worker process, given the settings, n, the seed of the
        first or None, and what its `InlineEnvs` need of the keywords of `Shard`; None: `make` makes them one by one.
      make_rendered: makes one environment to be seen, whose `scene` has a picture, given its settings and its seed, in
        a worker process; None: `make` does, given `render_mode` "rgb_array".
      mixes: whether `make` makes several of other ids in one, for which it takes the keywords
        `leave_out`, `action_mask` and `own` of `make_env` too.
      choices: by the names of arguments, the values that a file alone may give them (`common.settings.guards`): words
        of a list, or nothing. To other arguments it may give numbers and booleans.
      levels: ids by name, such as "rare", of what an id can be evaluated in (`evaluate.levels`), itself among them.
    """

    make: Callable[..., Any] = _no_single_environments
    make_vec: Callable[[VectorRequest], VectorEnv | None] = lambda _: None
    ids: Callable[[], Iterable[str]] = tuple
    make_part: Callable[..., InlineEnvs] | None = None
    make_rendered: Callable[[EnvConfig, int], InlineEnvs] | None = None
    mixes: bool = False
    choices: Mapping[str, Collection[Any]] = field(default_factory=dict, hash=False)
    levels: Callable[[str], Mapping[str, str]] = lambda _env_id: {}

    @property
    def has_single_environments(self) -> bool:
        """Whether it makes environments one by one."""
        return self.make is not _no_single_environments


def reference_for(env_id: str) -> str:
    """The reference of the backend that claims an id.

    Raises:
      EnvError: there is none, or several packages bring one for the same ids.
    """
    claim = plugins.claim_of(GROUP, env_id)
    if not claim:
        known = ", ".join(plugins.find_entry_points(GROUP)) or "none, install zerobeast again"
        raise unknown_id_error(env_id, f"no installed backend claims it (patterns of ids: {known})")
    what = f"env.id {env_id!r}, backend {claim}"
    with raise_as(EnvError, what):
        return plugins.reference_of(GROUP, claim, what)


def is_reference(env_id: str) -> bool:
    """Whether an id is `module:Name` or the like; those in the parentheses of a backend's id are not looked at."""
    return ":" in re.sub(r"\(.*\)", "", env_id)


def backend_of(env_id: str) -> Backend | None:
    """The backend that claims an id; None for a reference. Raises EnvError as `reference_for` and `backend_at`."""
    return None if is_reference(env_id) else backend_at(reference_for(env_id), env_id)


def backend_at(reference: str, env_id: str) -> Backend:
    """Import the backend that claims an id.

    Raises:
      EnvError: it cannot be imported or is no backend.
    """
    what = f"env.id {env_id!r}, backend {reference}"
    with raise_as(EnvError, what):
        backend = plugins.load_reference(reference, what)
    if not isinstance(backend, Backend):
        raise EnvError(path=what, expected=f"a Backend, got {type(backend).__name__}")
    return backend


def refuse_arguments(given: Collection[str], known: Collection[str], whose: str) -> None:
    """Raise EnvError if there is an argument that `whose` environments do not take."""
    if strange := sorted(set(given) - set(known)):
        what = f"env.kwargs: {strange[0]!r} is not an argument for {whose}"
        raise EnvError(f"{what}, expected any of {', '.join(sorted(known))}")


def unknown_id_error(env_id: str, reason: str) -> EnvError:
    """The error for an id that its backend does not have, with the ids of any backend that were probably meant."""
    known = list(_list_known_ids())
    pattern = re.compile(rf"(.*/)?{re.escape(env_id)}(NoFrameskip)?(-v\d+)?", re.IGNORECASE)
    versions = sorted(filter(pattern.fullmatch, known), key=lambda known_id: (len(known_id), known_id))
    newest = {re.sub(r"-v\d+$", "", known_id): known_id for known_id in versions}
    named = sorted(newest.values())  # of several packages, such as a game of Atari and MinAtar
    hint = f"; did you mean {' or '.join(named)}?" if named else did_you_mean(env_id, known)
    return EnvError(f"env.id {env_id!r} is unknown{hint or ': ' + ' '.join(reason.split())}")


def _list_known_ids() -> Iterator[str]:
    for reference in {entry.value for entries in plugins.find_entry_points(GROUP).values() for entry in entries}:
        with suppress(Exception):  # foreign code, and others have ids too
            yield from list(backend_at(reference, "").ids())
