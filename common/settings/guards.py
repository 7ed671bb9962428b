"""What a value of a setting decides beyond plain data, declared where the setting is: `setting(..., decides=CODE)`.

Whoever starts a process may decide all of it, and a file nothing of it alone (`common.config.trust`). The arguments of
environments are judged by type: numbers and booleans are plain, and so are the texts that a backend lists as `choices`.
"""

from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin

from zerobeast.common import plugins
from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import ConfigError

BACKENDS = "zerobeast.environments"  #: group of entry points
MAX_NESTING = 16  #: of plain arguments


class Around(NamedTuple):
    """What else counts when a value is judged."""

    env_ids: Collection[str]  #: of the environments that get the arguments
    folder: Path | None = None  #: of the file that gives the value


class Guard(NamedTuple):
    """What a setting decides, and by which values."""

    what: str  #: such as "imports a module", after the value
    matters: Callable[[Any, Around], bool]  #: of values other than the default
    always: bool = False  #: also for one who uses the settings and starts nothing


def _refers(value: Any, _: Around) -> bool:
    return ":" in str(value)


def _leaves_folder(value: Any, around: Around) -> bool:
    """Whether a path is neither below the folder that one stands in, nor in that of the file, nor where that one is."""
    path, own = Path(str(value)), around.folder
    if ".." in path.parts or str(path).startswith("~"):
        return True
    return path.is_absolute() and not (own and (path == own.parent or path.is_relative_to(own)))


def _leaves_machine(value: Any, around: Around) -> bool:
    """Whether one of these hosts or endpoints, with commas, is no loopback address, and no path below such a folder."""
    try:
        ends = [Endpoint.parse(part) if "//" in part else Endpoint(host=part) for part in str(value).split(",")]
    except ConfigError:  # refused as what it is
        return False
    return any(_leaves_folder(end.path, around) if end.path else not end.is_loopback for end in ends)


def _is_more_than_chosen(arguments: Any, around: Around) -> bool:
    """Whether one of these environments gets an argument that is no number and that its backend does not list."""
    named = arguments if isinstance(arguments, dict) else {}
    known = [of_backend(env_id, "choices", {}) for env_id in around.env_ids] if named else []
    return any(
        value not in choices[name] if name in choices else not is_plain({name: value})
        for choices in known
        for name, value in named.items()
    )


def is_plain(value: Any, nesting: int = MAX_NESTING) -> bool:
    """Whether a value consists of numbers and booleans, in lists and under names of Python."""
    if isinstance(value, list) and nesting:
        return all(is_plain(part, nesting - 1) for part in value)
    if isinstance(value, dict) and nesting:
        named = all(isinstance(name, str) and name.isidentifier() for name in value)
        return named and all(is_plain(part, nesting - 1) for part in value.values())
    return isinstance(value, bool | int | float | None)


def of_backend(env_id: str, what: str, nothing: Any) -> Any:
    """What the backend that claims an id declares under this name; `nothing` if none does, and for a reference."""
    with suppress(ConfigError):  # whoever makes the environment reports it
        if ":" not in env_id and (claim := plugins.claim_of(BACKENDS, env_id)):
            return getattr(plugins.load_reference(plugins.reference_of(BACKENDS, claim, env_id), env_id), what, nothing)
    return nothing


_IMPORTS, _TEXT = "imports a module", "may name a file, a program or a module"
NO_GUARD = Guard("", lambda _value, _around: False)
CODE = Guard(_IMPORTS, _refers, always=True)
ENVIRONMENT = Guard(_IMPORTS, _refers)
ARGUMENTS = Guard(_TEXT, _is_more_than_chosen)  #: of environments' constructors
TEXT = Guard(
    _TEXT, lambda value, _: not is_plain(value), always=True
)  #: for code that is not ours: of a setting that declares nothing
PEERS = Guard("decides who may take part", lambda _value, _around: True)
REACH = Guard("reaches beyond this machine", _leaves_machine)
PLACE = Guard("is a place outside this folder", _leaves_folder)


def takes_text(kind: Any) -> bool:
    """Whether a type has values that consist of more than numbers and words of its own."""
    if get_origin(kind) is Literal or kind in (bool, int, float, NoneType, ...):
        return False
    parts = get_args(kind)
    return not parts or get_origin(kind) is dict or any(map(takes_text, parts))
