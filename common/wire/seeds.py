"""Seeds of a run that continues: random draws must not repeat those from the beginning of the run."""

import struct
from collections.abc import Sequence
from hashlib import blake2b

MAX_ENV_SEED = 2**31 - 1  #: largest seed that HELLO may ask an env-server for
SPREAD = 2_654_435_769  #: 2^32 / golden ratio: its multiples lie far apart (Knuth, volume 3, section 6.4)
EnvSeeds = int | Sequence[int | None] | None  #: environment i gets seed + i, or entry i; None: its generator continues


def continue_seed(seed: int, after: int) -> int:
    """The seed of a run that continues after `after` steps or versions: `seed` itself at the beginning."""
    return seed + after * SPREAD


def hash_seed(*numbers: int) -> int:
    """A seed that depends on these numbers alone, each from 0 to 2^64 - 1, as in a counter-based generator.

    torch uses only its lower 32 bits, so it is a hash in which every number affects them.
    """
    digest = blake2b(struct.pack(f"<{len(numbers)}Q", *numbers), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def slice_seeds(seed: EnvSeeds, part: slice) -> EnvSeeds:
    """The seeds of the environments in `part`, from the `seed` of all of them."""
    if seed is None:
        return None
    return seed + part.start if isinstance(seed, int) else seed[part]


def list_seeds(seed: EnvSeeds, num_envs: int) -> list[int | None]:
    """The seed of each environment."""
    if seed is None:
        return [None] * num_envs
    return [seed + i for i in range(num_envs)] if isinstance(seed, int) else list(seed)
