"""Write, read and check the contents of HELLO and WELCOME: dataclasses as plain msgpack values."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.text import short
from zerobeast.common.wire.codec import MAX_NDIM

Rule = tuple[bool, str, Any, str]  #: whether it holds; the field, its value, and what is expected of it
#: fields that may be missing, which stands for their default
OPTIONAL = frozenset({"narrow", "start"})
MAX_SIZES = MAX_NDIM - 1  #: of a shape
SHAPE = f"at most {MAX_SIZES} sizes, each at least 1"


class Description(ABC):
    """Base of the dataclasses that travel."""

    def to_wire(self) -> dict[str, Any]:
        """The fields as plain msgpack values."""
        plain: dict[str, Any] = _to_plain(self)
        return plain

    @classmethod
    def from_wire(cls, entries: Any) -> Self:
        """Inverse of `to_wire`.

        Raises:
          RemoteProtocolError: a key is missing or of the wrong type, or a rule does not hold.
        """
        spec: Self = _read_field(cls, entries, "")
        for holds, field, value, expected in spec.rules():
            if not holds:
                raise _field_error(field, value, expected)
        return spec

    @abstractmethod
    def rules(self) -> Iterator[Rule]:
        """Rules that the fields must satisfy; each may rely on those before it."""


def flatten(entries: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The output of `to_wire` flattened by path: "action.kind", "obs.camera.shape", ..."""
    found: dict[str, Any] = {}
    for name, value in entries.items():
        parts = dict(value) if name == "spaces" else value
        path = prefix if name == "spaces" else f"{prefix}{name}"
        if isinstance(parts, dict):
            found |= flatten(parts, path if name == "spaces" else f"{path}.")
        else:
            found[path] = value
    return found


def is_shape(shape: tuple[int, ...]) -> bool:
    """Whether an array that travels may have this shape: `SHAPE`."""
    return len(shape) <= MAX_SIZES and all(size >= 1 for size in shape)


def _to_plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _to_plain(getattr(value, field.name)) for field in fields(value)}
    return [_to_plain(entry) for entry in value] if isinstance(value, tuple) else value


def _field_error(field: str, value: Any, expected: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"{field} is {short(value)}, expected {expected}", "spec", path=field, value=value, expected=expected
    )


def _read_field(kind: Any, value: Any, field: str) -> Any:
    """Read a peer's value of one field as its kind.

    A kind is a plain type, a tuple of one, a named tuple, a Literal of texts, a dataclass or a union of dataclasses, of
    which the one whose keys are present is read. A whole number may stand for a float; no other type may differ.
    """
    if isinstance(kind, UnionType):
        kind = next((each for each in get_args(kind) if _has_keys(value, each)), get_args(kind)[0])
    wanted: Any = _wire_type(kind)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        raise _field_error(field, value, f"a value of type {wanted.__name__}")
    if wanted is dict:
        prefix = field and f"{field}."
        hints = {name: hint for name, hint in get_type_hints(kind).items() if name in value or name not in OPTIONAL}
        return kind(**{name: _read_field(hint, value.get(name), prefix + name) for name, hint in hints.items()})
    if _is_named_tuple(kind):
        if len(value) != len(hints := get_type_hints(kind)):
            raise _field_error(field, value, f"[{', '.join(hints)}]")
        return kind(
            *(_read_field(hints[name], entry, f"{field}.{name}") for name, entry in zip(hints, value, strict=True))
        )
    return tuple(_read_field(get_args(kind)[0], entry, field) for entry in value) if wanted is list else value


def _wire_type(kind: Any) -> type:
    """The type that a value of this kind has in msgpack."""
    if is_dataclass(kind):
        return dict
    if _is_named_tuple(kind) or get_origin(kind) is tuple:
        return list
    wanted: type = str if get_origin(kind) is Literal else kind
    return wanted


def _is_named_tuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple)


def _has_keys(value: Any, kind: Any) -> bool:
    return isinstance(value, dict) and all(field.name in value for field in fields(kind) if field.name not in OPTIONAL)
