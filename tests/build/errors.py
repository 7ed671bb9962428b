"""What an error says, by its fields: no test compares sentences, which stand in tests/golden."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import pytest

from zerobeast.common.errors import BeastError, ConfigError

E = TypeVar("E", bound=BeastError)


class Caught(Generic[E]):
    """The error that a block has raised; its mistakes are errors of their own if there are several."""

    error: E

    @property
    def paths(self) -> list[str]:
        """What is at fault in each mistake."""
        return [each.path for each in self.error.mistakes]

    def of(self, path: str) -> BeastError:
        """The mistake in this setting, argument or file."""
        found = [each for each in self.error.mistakes if each.path == path]
        assert found, f"no mistake in {path!r}, but in {self.paths}: {self.error}"
        return found[0]


@contextmanager
def refuses(path: str | None = None, *, kind: type[Any] = ConfigError, **fields: Any) -> Iterator[Caught[Any]]:
    """Expect an error of which a mistake has this path and these fields.

    with refused("net.core", value="lstm"):
        load(["--net.core=lstm", "--algo", "dqn"], {})

    Args:
      path: of the setting, argument, flag or file at fault; None: any.
      kind: of the error.
      fields: others of the same mistake, such as `value`, `expected`, `beside`, `layer` and `reason`.
    """
    caught: Caught[Any] = Caught()
    with pytest.raises(kind) as raised:
        yield caught
    caught.error = raised.value
    fields |= {} if path is None else {"path": path}
    seen = [{name: getattr(each, name) for name in fields} for each in raised.value.mistakes]
    assert fields in seen, f"expected {fields}, got {seen}: {raised.value}"
