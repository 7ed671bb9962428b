"""Seeds of a run that continues: what draws at random must not repeat what it drew when the run began."""

from __future__ import annotations

MAX_ENV_SEED = 2**31 - 1  #: what HELLO may ask an env-server for
SPREAD = 2_654_435_769  #: 2^32 / golden ratio: its multiples lie far apart (Knuth, volume 3, section 6.4)


def continued(seed: int, after: int) -> int:
    """The seed in a run that continues after so many steps or versions: `seed` itself where it begins."""
    return seed + after * SPREAD
