"""When a process that acts takes newer weights: the rules that `sync.rule` may name.

always          every published version, as it arrives
every N         once the newest is N published versions ahead
every T s       once the present weights are T seconds old
adaptive X      once the learner's policy differs by more than X from the one that acts (Adaptive Policy
                Synchronization: Lafuente-Mercado 2025, arXiv:2507.10990)
never           only the first version
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator

from zerobeast.common.settings.guards import NO_GUARD
from zerobeast.common.settings.section import Section, setting

EXPECTED_RULES = "expected always, every N, every T s, adaptive THRESHOLD or never"


class Rule(NamedTuple):
    """A rule, parsed."""

    name: Literal["always", "versions", "seconds", "adaptive", "never"]
    value: float = 0.0  #: versions, seconds, or the threshold

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Read a rule as a user writes it.

        Raises:
          ValueError: the text is not a rule.
        """
        words = text.split()
        if words in (["always"], ["never"]):
            return cls("always" if words == ["always"] else "never")
        number = _number(words[1]) if len(words) > 1 else None
        if number is not None:
            if words[0] == "every" and len(words) == 2 and number >= 1 and number == int(min(number, 2**62)):
                return cls("versions", number)
            if words[0] == "every" and words[2:] == ["s"] and 0 < number < math.inf:
                return cls("seconds", number)
            if words[0] == "adaptive" and len(words) == 2:
                return cls("adaptive", number)
        raise ValueError(EXPECTED_RULES)

    @property
    def measured(self) -> bool:
        """Whether the learner has to measure divergences for this rule."""
        return self.name == "adaptive"


ALWAYS_RULE = Rule("always")


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"-?inf|-?\d+\.?\d*(e-?\d+)?|-?\.\d+(e-?\d+)?", text) else None


def _valid(text: str) -> str:
    Rule.parse(text)
    return text


class SyncConfig(Section):
    """When brokers take newer weights."""

    rule: Annotated[str, AfterValidator(_valid)] = setting(
        "always",
        "always, every N (published versions), every T s, never, or adaptive THRESHOLD, the limit on the newest "
        "policy's divergence from the acting one: for actor-critics, the mean KL divergence; for Q-learning, the share "
        "of observations whose best action differs; for DDPG, TD3 and SAC, the distance between the likeliest actions",
        decides=NO_GUARD,
    )

    @property
    def parsed(self) -> Rule:
        """The rule."""
        return Rule.parse(self.rule)
