"""Seeds of a run that continues: what draws at random must not repeat what it drew when the run began."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b

MAX_ENV_SEED = 2**31 - 1  #: what HELLO may ask an env-server for
SPREAD = 2_654_435_769  #: 2^32 / golden ratio: its multiples lie far apart (Knuth, volume 3, section 6.4)
EnvSeeds = int | Sequence[int | None] | None  #: environment i gets seed + i, or entry i; None: its generator goes on


def continued(seed: int, after: int) -> int:
    """The seed in a run that continues after so many steps or versions: `seed` itself where it begins."""
    return seed + after * SPREAD


def counted(*numbers: int) -> int:
    """A seed that follows from these numbers alone, each from 0 to 2^64 - 1, as of a counter-based generator.

    torch uses its lower 32 bits, so it is a hash in which all of them count.
    """
    digest = blake2b(struct.pack(f"<{len(numbers)}Q", *numbers), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def of_part(seed: EnvSeeds, part: slice) -> EnvSeeds:
    """What seeds some of the environments as `seed` does all of them."""
    if seed is None:
        return None
    return seed + part.start if isinstance(seed, int) else seed[part]


def one_by_one(seed: EnvSeeds, num_envs: int) -> list[int | None]:
    """The seed of each environment."""
    if seed is None:
        return [None] * num_envs
    return [seed + i for i in range(num_envs)] if isinstance(seed, int) else list(seed)
