"""Training state that consists of parts, each with a state of its own."""

from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import nn

from zerobeast.common.errors import ConfigError


@runtime_checkable
class Stateful(Protocol):
    """A part that is no module."""

    def state(self) -> Any:
        """What a checkpoint must hold."""

    def load(self, state: Any, /) -> None:
        """Continue from `state`."""


class Parts:
    """Implements `state` and `load` of `zerobeast.rl.protocol.Learning` in terms of `parts`."""

    parts: dict[str, nn.Module | Stateful | None]  #: by name; None: there is none with these settings
    optional: ClassVar[tuple[str, ...]] = ()  #: those that a checkpoint made with other settings may lack

    def refuse_stateless(self) -> None:
        """Raise ConfigError for a part that no checkpoint can hold."""
        for name, part in self.parts.items():
            if not isinstance(part, nn.Module | Stateful | None):
                own = "a GradientDescent (for an optimiser), an nn.Module, or an object with state() and load(state)"
                raise ConfigError(
                    f"{type(self).__name__}: part {name!r} is {type(part).__name__}, expected {own}", path=name
                )

    def state(self) -> dict[str, Any]:
        """The training state besides the policy, for a checkpoint."""
        parts = [(name, part) for name, part in self.parts.items() if part is not None]
        return {name: part.state_dict() if isinstance(part, nn.Module) else part.state() for name, part in parts}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        for name, part in self.parts.items():
            if part is not None and (name not in self.optional or state.get(name) is not None):
                (part.load_state_dict if isinstance(part, nn.Module) else part.load)(state[name])
