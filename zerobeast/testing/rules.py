"""A rule of an interface: a check with a name, and the sentence why it holds."""

from collections.abc import Callable
from typing import Any, Final
from unittest import SkipTest


class BrokenRule(AssertionError):
    """An implementation breaks a rule: the text has the rule's name, why it matters, and what was seen."""


class Rule:
    """One rule of an interface. Calling it with an implementation raises BrokenRule if that does not keep it."""

    def __init__(self, check: Callable[..., None]) -> None:
        self._check: Final = check
        self.name = check.__name__.replace("_", " ")
        self.why = " ".join((check.__doc__ or "").split())

    def __str__(self) -> str:
        return self.name

    def __call__(self, *implementation: Any, **settings: Any) -> None:
        """Check it.

        Raises:
          BrokenRule: the check failed, or the implementation raised anything.
          SkipTest: the rule is about something that the implementation does not have; pytest skips the test.
        """
        try:
            self._check(*implementation, **settings)
        except SkipTest:
            raise
        except Exception as error:
            seen = str(error).partition("\n")[0]
            raise BrokenRule(f"{self.name}: {self.why} [{type(error).__name__}: {seen}]") from error


def rule(check: Callable[..., None]) -> Rule:
    """Make a rule of a check. Its name is that of the function, and its docstring says in one sentence why."""
    return Rule(check)


def rules_in(namespace: dict[str, Any]) -> tuple[Rule, ...]:
    """The rules of a module, given its `globals()`, in the order in which they are written."""
    return tuple(entry for entry in namespace.values() if isinstance(entry, Rule))
