"""TorchBeast's flags (monobeast.py, polybeast.py and its two halves) as flags of ours, beside its defaults in
`presets/torchbeast.yaml`, so that its users can keep their commands.

The table has for each of its flags those of ours, which take its value unless they have one, or the reason why there is
none. TorchBeast has IMPALA alone, and so do its flags. `--num_actors` counts environments, one to a process; here they
are spread over the preset's two env groups, rounded up.
"""

from collections.abc import Callable, Iterator, Sequence
from math import ceil
from pathlib import Path

import yaml

from zerobeast.common.config.flags import Flag, parse_flags
from zerobeast.common.errors import BeastError

PRESET = "torchbeast"
ACTORS, GROUPS = "num_actors", 2  #: its flag that counts environments; env groups of the preset

TABLE: dict[str, str] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def translate_flags(argv: Sequence[str], remark: Callable[[str], object]) -> list[str]:
    """The same command line without flags of TorchBeast, which are understood if it names the preset.

    Args:
      argv: flags of TorchBeast and of ours, which count more.
      remark: takes a sentence for each flag that is not needed here.

    Raises:
      ConfigError: the number of actors is none.
    """
    if not any(PRESET in word for word in argv):
        return list(argv)
    others: list[BeastError] = []  # about arguments that are no flags, which whoever reads the rest refuses
    flags = list(parse_flags(argv, others))
    if ("preset", PRESET) not in [(flag.key, flag.text) for flag in flags]:
        return list(argv)
    theirs = [word for flag in flags if flag.key in TABLE for word in _translate_flag(flag, remark)]
    ours = [_with_value(f"--{flag.name}", flag.text) for flag in flags if flag.key not in TABLE]
    return [*(str(other.value) for other in others), *theirs, *ours]


def _translate_flag(flag: Flag, remark: Callable[[str], object]) -> Iterator[str]:
    meaning, text = TABLE[flag.key], flag.text
    if not meaning.startswith("--"):
        remark(f"--{flag.name} is not needed here: {meaning}")
        return
    if flag.key == ACTORS:
        if not (text or "").isdecimal():
            raise flag.refusal("a whole number")
        text = str(ceil(int(text or 0) / GROUPS))
    if "=" in meaning and text not in (None, "1", "true", "True"):
        raise flag.refusal("no value, as it switches something on")
    yield from (word if "=" in word else _with_value(word, text) for word in meaning.split())


def _with_value(flag: str, text: str | None) -> str:
    return flag if text is None else f"{flag}={text}"
