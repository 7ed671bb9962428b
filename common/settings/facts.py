"""What other modules know about a setting, declared with it: `setting(default, meaning, about=About.FILES)`."""

from collections.abc import Collection
from enum import StrEnum
from typing import NamedTuple

from pydantic.fields import FieldInfo

from zerobeast.common.settings.guards import NO_GUARD, TEXT, Guard, takes_text

FACTS = "facts"  #: where a field keeps them


class About(StrEnum):
    """What a setting is about: how runs that differ in it are compared, resumed, exported and shown."""

    LEARNING = ""  #: what is learned
    IDENTITY = "identity"  #: which run it is
    PEERS = "peers"  #: who takes part, and at which addresses
    CAPACITY = "capacity"  #: how much a process takes on
    VERSIONS = "versions"  #: which policies are kept, some of which are opponents of `env.opponent past`
    FILES = "files"  #: what is written, and when
    MACHINE = "machine"  #: where it is computed


class Idle(NamedTuple):
    """Where a setting has no effect."""

    placements: Collection[str]  #: of `beast train`
    why: str = ""  #: if it is not the placement


class Facts(NamedTuple):
    """What is declared of one setting.

    Attributes:
      about: None: what its section is about.
      bound: whether a run that is resumed, and a fork, keep it; None: as its section.
      decides: more than data; None: nothing if it takes no text, else anything.
      share: of `total_steps`: the most that it is if nobody gives it.
      short: its name in every layer beside its path.
      idle: where it has no effect.
      names: whether it says which run one is: the preset depends on it, and its value alone stands for it in a name.
      of_host: whether its value is a place of one machine, which containers do not have and others need not know.
      scales: whether the number of a run's environments and processes follows from it, so that none of these numbers is
        chosen for a machine if it is given.
      shapes: whether it is asked of an environment, or decides how one is described; None: as its section.
    """

    about: About | None = None
    bound: bool | None = None
    decides: Guard | None = None
    share: float = 0.0
    short: str = ""
    idle: Idle = Idle(())
    names: bool = False
    of_host: bool = False
    scales: bool = False
    shapes: bool | None = None


def facts_of(field: FieldInfo) -> Facts:
    """What a setting declares."""
    extra = field.json_schema_extra
    found = extra.get(FACTS) if isinstance(extra, dict) else None
    return found if isinstance(found, Facts) else Facts()


def guard_of(field: FieldInfo) -> Guard:
    """What a setting decides. One that declares nothing is plain if it takes no text, or one of some words."""
    return facts_of(field).decides or (TEXT if takes_text(field.annotation) else NO_GUARD)
