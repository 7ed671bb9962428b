"""What a setting takes, in plain words."""

from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

KINDS: dict[Any, str] = {
    int: "a whole number",
    int | None: "a whole number",
    float: "a number",
    float | None: "a number",
    bool: "true or false",
    str: "text",
}
BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def expectation(field: FieldInfo) -> str:
    """What a setting takes, such as "a whole number, at least 1 and at most 64"."""
    kind = field.annotation
    if get_origin(kind) is Literal:
        *some, last = (str(choice) for choice in get_args(kind))
        return f"{', '.join(some)} or {last}" if some else last
    if get_origin(kind) is dict:
        return "a mapping such as {name: value}"
    name = KINDS.get(kind, "text")
    pairs = [(words, getattr(entry, key, None)) for entry in field.metadata for key, words in BOUNDS.items()]
    bounds = " and ".join(f"{words} {bound}" for words, bound in pairs if bound is not None)
    return f"{name}, {bounds}" if bounds else name
