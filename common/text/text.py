"""Text from others, made safe for a terminal and a log."""

import re

#: characters that control a terminal, end a line or change the direction of text
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_UNPRINTABLE_IN_LINES = re.compile(_UNPRINTABLE.pattern.replace(r"\x00-\x1f", r"\x00-\x09\x0b-\x1f"))


def printable(text: str, *, lines: bool = False) -> str:
    r"""Escape control characters as Python writes them: ESC becomes the four characters \x1b.

    With `lines`, line feeds stay.
    """
    unprintable = _UNPRINTABLE_IN_LINES if lines else _UNPRINTABLE
    return unprintable.sub(lambda found: repr(found[0])[1:-1], text)
