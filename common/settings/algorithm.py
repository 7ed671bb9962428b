"""How an algorithm presents itself: its name, its settings, and the answers of these settings to other packages; and
the algorithms that runs can name: those of installed packages, our own among them, and those given by reference.

    SPEC = AlgorithmSpec("awr", AWRConfig, "awr.algorithm:AWR")

A package registers such an object as an entry point of the group `zerobeast.algorithms`, under the same name; our own
algorithms do so too. It is torch-free: every service reads the settings, and only brokers and learner make the rest.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from inspect import currentframe
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pydantic_core import PydanticUndefined

from zerobeast.common import plugins
from zerobeast.common.errors import ConfigError, raise_as
from zerobeast.common.settings.run import Run
from zerobeast.common.settings.section import Section
from zerobeast.common.text import as_text
from zerobeast.common.wire import Space

GROUP = "zerobeast.algorithms"
known_specs: dict[str, AlgorithmSpec] = {}  #: by the value of `algo`


class Relation(NamedTuple):
    """A relation between settings that is broken, though each is valid on its own."""

    paths: tuple[str, ...]  #: of the settings that it relates; the first one is at fault
    sentence: str
    value: Any = None  #: of the first one
    expected: str = ""

    @classmethod
    def of(cls, values: Mapping[str, Any], expected: str) -> Relation:
        """Between settings with these values, by path; `expected` says what the first one should be."""
        (path, value), *others = values.items()
        beside = [
            f"without {other}" if own == "" else f"with {other} {as_text(own)}".removesuffix(" true")
            for other, own in others
        ]
        sentence = f"{path} {as_text(value)} {' and '.join(beside)}: expected {expected}"
        return cls(tuple(values), sentence, value, expected)

    def mistake(self, layers: str = "") -> ConfigError:
        """The error about it; `layers` are those that give the settings."""
        sentence = f"{self.sentence} (from {layers})" if layers else self.sentence
        path, *beside = self.paths or ("",)
        return ConfigError(sentence, path=path, value=self.value, expected=self.expected, beside=beside, layer=layers)


class AlgorithmSettings(Section):
    """Base of the settings of every algorithm. Each answer has a default; `name` is that of the settings' section."""

    actions: ClassVar[str] = "any actions"  #: that `takes` accepts, in words
    memory: ClassVar[bool] = True  #: whether it can learn with a core
    sees_last_step: ClassVar[bool] = True  #: whether `net.last_action_reward` counts

    #: whether drawing actions explores, so that the policy that is learned is the greedy one
    drawing_explores: ClassVar[bool] = False
    corrects_age: ClassVar[bool] = False  #: whether old rollouts may join a batch, since it allows for their policies
    dense_width: ClassVar[int] = 0  #: of dense networks that it brings; 0: it brings none
    batch_norms: ClassVar[bool] = False  #: whether it learns with `net.norm batch`
    replays: ClassVar[bool] = False  #: whether it acknowledges rollouts before it learns from them

    @property
    def samples_per_step(self) -> float:
        """How often each agent step is learned from, about: its cost for the learner in relation to acting."""
        return 1.0

    @property
    def rescaled_by(self) -> str:
        """The setting by which values are not in units of the rewards that are learned from; empty if they are."""
        return ""

    @property
    def normalized_by(self) -> str:
        """The setting by which values are normalised for each task (PopArt); empty if they are not."""
        return ""

    @property
    def reused_by(self) -> str:
        """The setting by which old rollouts join new batches; empty if none do."""
        return ""

    @classmethod
    def takes(cls, _action: Space) -> bool:
        """Whether it learns such actions under some settings."""
        return True

    def flaw(self, _action: Space, _name: str) -> str:
        """Why these settings do not suit actions that it takes, as a sentence; empty if they do."""
        return ""

    def unused_settings(self) -> dict[str, tuple[str, str]]:
        """Settings without effect, each with the setting that is the cause and the rest of a sentence about it."""
        return {}

    def relations(self, _name: str, _run: Run) -> Iterator[Relation]:
        """What does not fit together, among these settings or with those of the run."""
        yield from ()

    def bound(self, _now: AlgorithmSettings) -> tuple[str, ...]:
        """Paths of settings that cannot change when a run with these settings continues with `_now`.

        Those of the algorithm begin with a dot, as in ".replay_size".
        """
        return ()

    def live(self) -> tuple[str, ...]:
        """Settings that the learner alone reads, at each of its steps, so that they may change while it learns."""
        return ()

    def jump(self, _name: str, _run: Run, _before: AlgorithmSettings, _total_before: int, _steps: int) -> str:
        """A sentence if learning goes on otherwise than before or than asked for; empty if not.

        Args:
          _name: of the section.
          _run: that continues.
          _before: the settings until now.
          _total_before: the run's agent steps in all, until now.
          _steps: agent steps after which it continues.
        """
        return ""


@dataclass(frozen=True)
class AlgorithmSpec:
    """An algorithm that a run can name.

    Raises:
      ConfigError: name or settings cannot be those of an algorithm.
    """

    name: str  #: of the algorithm and of its section in the settings, such as ppo
    settings: type[AlgorithmSettings]  #: with a default for each
    #: (RunConfig, EnvSpec) -> `zerobeast.rl.protocol.Algorithm`, or `module:NAME` of such a callable
    make: str | Callable[[Any, Any], Any]
    #: whose presets are its own if it has none that fits; None: the one from whose settings its own are derived
    parent: AlgorithmSpec | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", self.name) or self.name in (*Run.model_fields, "algorithm"):
            expected = "a name of lower-case letters, digits and _ that is none of the run's own settings"
            raise ConfigError(f"algorithm {self.name!r}: expected {expected}", path="name", value=self.name)
        if not (isinstance(self.settings, type) and issubclass(self.settings, AlgorithmSettings)):
            sentence = f"algorithm {self.name}: settings are {self.settings!r}, expected an AlgorithmSettings"
            raise ConfigError(sentence, path="settings", value=self.settings)
        fields = self.settings.model_fields.items()
        if bad := [key for key, one in fields if one.default is PydanticUndefined or hasattr(AlgorithmSettings, key)]:
            names = "a default for each, and names that are not those of its answers, which have no annotation"
            sentence = f"algorithm {self.name}: settings {', '.join(bad)}: expected {names}"
            raise ConfigError(sentence, path="settings", value=bad, expected=names)
        with raise_as(ConfigError, f"algorithm {self.name}: the defaults of its settings"):
            self.settings()
        if (made := currentframe()) and made.f_back and made.f_back.f_back:  # the code that calls the class
            object.__setattr__(self, "__module__", made.f_back.f_back.f_globals.get("__name__"))
        if self.parent is None:
            object.__setattr__(self, "parent", _origin(self.settings))

    @property
    def lineage(self) -> tuple[AlgorithmSpec, ...]:
        """Itself, its parent, and so on."""
        return (self, *(self.parent.lineage if self.parent else ()))

    @property
    def presets(self) -> dict[str, Path]:
        """Its own presets, by name: `presets/atari.yaml` beside its settings is "atari-<name>"."""
        home = self.settings.__module__
        file = getattr(sys.modules.get(home), "__file__", None)  # code that was typed in has none
        if file is None or (self.parent and self.parent.settings.__module__ == home):
            return {}
        return {f"{path.stem}-{self.name}": path for path in Path(file).parent.glob("presets/*.yaml")}

    def build(self, config: Any, env: Any) -> Any:
        """The algorithm for one environment. This imports torch.

        Raises:
          ConfigError: what makes it cannot be imported.
        """
        make = plugins.load_reference(self.make, f"algo {self.name}") if isinstance(self.make, str) else self.make
        return make(config, env)


def _origin(settings: type[AlgorithmSettings]) -> AlgorithmSpec | None:
    """The algorithm whose settings these are or are derived from, if its spec stands in the module of its settings."""
    for kind in settings.__mro__:
        for one in vars(sys.modules.get(kind.__module__, kind)).values():
            if isinstance(one, AlgorithmSpec) and one.settings is kind:
                return one
    return None


def spec_of(algo: str) -> AlgorithmSpec:
    """The algorithm that `algo` names.

    Raises:
      ConfigError: it is unknown, cannot be imported, or is no algorithm.
    """
    if ":" in algo or algo not in known_specs:  # a file may have changed
        spec = plugins.find_part(GROUP, algo, "algo")
        if not isinstance(spec, AlgorithmSpec):
            raise ConfigError(path="algo", value=algo, expected=f"an AlgorithmSpec, got {type(spec).__name__}")
        if ":" not in algo and spec.name != algo:
            raise ConfigError(
                f"algo {algo}: its name is {spec.name}, expected that of its entry point", path="algo", value=algo
            )
        if ":" in algo and spec.name in plugins.find_entry_points(GROUP) and spec_of(spec.name) is not spec:
            sentence = f"algo {algo}: another algorithm has its name, {spec.name}: expected a name of its own"
            raise ConfigError(sentence, path="algo", value=algo)
        for other in [other for other, one in known_specs.items() if ":" in other and one.name == spec.name]:
            del known_specs[other]  # as in an earlier version of its file
        known_specs[algo] = spec
    return known_specs[algo]


def find_usable() -> Iterator[AlgorithmSpec]:
    """The installed algorithms, without those that cannot be imported, and the ones given by reference so far."""
    for name in plugins.find_entry_points(GROUP):
        with suppress(ConfigError):
            spec_of(name)
    yield from {spec.name: spec for spec in known_specs.values()}.values()


def spec_of_section(name: str) -> AlgorithmSpec | None:
    """The algorithm whose section of the settings has this name, if there is one.

    Raises:
      ConfigError: it is installed and cannot be imported.
    """
    if name in plugins.find_entry_points(GROUP):
        return spec_of(name)
    return next((spec for spec in known_specs.values() if spec.name == name), None)
