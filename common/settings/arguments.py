"""Arguments of environments: what arrives in another process as it was given, and how much of it."""

from contextlib import suppress
from math import isfinite
from typing import Any

from pydantic import BeforeValidator

from zerobeast.common.errors import ConfigError, LocalProtocolError, raise_as
from zerobeast.common.wire.codec import pack

MAX_NESTING = 24  #: levels of lists and dicts
PLAIN_VALUES = (
    f"text, finite 64-bit numbers, True, False, None, or lists and dicts of these, at most {MAX_NESTING} deep"
)


def to_plain(value: Any, place: str, nesting: int = MAX_NESTING) -> Any:
    """The same value: a number or array of numpy as Python's number or list, and a tuple as a list.

    Raises:
      ConfigError: it would not arrive in another process as it is; the error names its place, such as "walls.north[2]".
    """
    if isinstance(value, dict) and nesting:
        if strange := [key for key in value if not isinstance(key, str)]:
            raise ConfigError(
                f"{place} has the key {strange[0]!r:.100}, expected text as keys", path=place, value=strange[0]
            )
        return {key: to_plain(part, f"{place}.{key}", nesting - 1) for key, part in value.items()}
    if isinstance(value, list | tuple) and nesting:
        return [to_plain(part, f"{place}[{index}]", nesting - 1) for index, part in enumerate(value)]
    if hasattr(type(value), "tolist"):
        return to_plain(value.tolist(), place, nesting)
    with suppress(LocalProtocolError):  # a larger number, or text with half a character
        if isinstance(value, str | int | None) or (isinstance(value, float) and isfinite(value)):
            pack(value)
            return value
    raise ConfigError(argument=place, value=value, expected=PLAIN_VALUES)


def validate_arguments(most: int) -> BeforeValidator:
    """A mapping of plain values of at most so many bytes, as they are sent to env-servers."""

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            return value  # which is refused as no mapping
        with raise_as(ValueError, "", ConfigError):
            given = {name: to_plain(part, str(name)) for name, part in value.items()}
        if (size := len(pack(given))) > most:
            file = "the name of a file that the environment reads"
            raise ValueError(f"{size:,} bytes, expected at most {most:,}, or {file}")
        return given

    return BeforeValidator(read)
