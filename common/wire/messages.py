"""Every message on the wire. docs/protocol.md is this file in prose; change both, and the version.

kind      from        to          frames
HELLO     actor       any server  header                     body: (terms,)
WELCOME   any server  actor       topic+header               body: (terms,)
ERROR     any server  actor       topic+header               body: (reason, sentence)
BYE       either      either      header                     body: ()
HERE      any server  actor       topic+header               body: ()
RESET     actor       env-server  header                     body: (seed?, options?, mask?, progress?)
STEP      actor       env-server  header, action rows        body: (progress?)
OBS       env-server  actor       topic+header, step rows    body: (episodes, infos?)
INFER     actor       broker      header, step rows          body: (want_core_state,)
ACT       broker      actor       topic+header, act rows     body: (policy_version, opponents?)
                                  [, core state rows when wanted]
ROLLOUT   actor       learner     header, rollout rows       body: (n_rows, episodes, acting)
ACK       learner     actor       topic+header               body: (consumed_seq, window, progress?)
WEIGHTS   learner     anyone      topic+header, chunks...    body: (policy_version, layout_id, n_bytes, checksum,
                                                                    n_chunks)
NEWS      learner     anyone      topic+header               body: (policy_version, divergences, agent_steps?)

The header is a msgpack list [version, kind, sender, slot, epoch, seq, *body]. `sender` names the client of the
conversation in both directions (0 on broadcasts), `slot` one of its streams. The first three entries keep their
place in every version, so that a peer of another version can be answered. Every integer in the header is unsigned and
below 2**63, including those in the body. An entry with ? may be nil, and is left out at the end of a body. The header
is followed by rows of one `zerobeast.common.wire.specs.RecordSpec`, agreed at HELLO; nothing on the wire is ever
pickled.

Both ends of a plane use the same version. A server answers a message of another one with ERROR `version` in its own; a
client that gets a reply of another version gives up.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from typing import Any, get_args

from zerobeast.common.errors import LocalProtocolError, Refusal, RemoteProtocolError, VersionMismatch
from zerobeast.common.wire.codec import pack, unpack

PROTOCOL_VERSION = 4  #: on every plane
MAX_HEADER_BYTES = 64 * 1024
MAX_INTEGER = 2**63 - 1
TOPIC_BYTES = 9
MAX_EPISODES = 1000  #: in one ROLLOUT
MAX_OPTIONS_BYTES = 16 << 10  #: of a RESET, in msgpack
MAX_WINDOW = 64  #: unacknowledged ROLLOUTs of one slot, whatever window either side assumes


class Kind(IntEnum):
    """What a message asks or answers."""

    HELLO = 1
    WELCOME = 2
    ERROR = 3
    BYE = 4
    RESET = 5
    STEP = 6
    OBS = 7
    INFER = 8
    ACT = 9
    ROLLOUT = 10
    ACK = 11
    WEIGHTS = 12
    HERE = 13
    NEWS = 14


class Plane(Enum):
    """A family of sockets; its letter opens the topic of every reply."""

    STEPS = b"s"
    INFERENCE = b"i"
    ROLLOUTS = b"r"
    WEIGHTS = b"w"


class Reason(StrEnum):
    """Why a server refused, and so whether the client should try again."""

    UNKNOWN_SESSION = "unknown_session"  #: send HELLO again: the server restarted or reaped the session
    VERSION = "version"  #: the server uses the version of this header and no other: give up
    TERMS = "terms"  #: the server can never accept what HELLO asked for: give up
    ENVIRONMENT = "environment"  #: the environment cannot be built: give up
    BUSY = "busy"  #: the server cannot accept it now, but perhaps later: send HELLO again then


#: The reason sent for these refusals; all others are sent as TERMS.
REASONS_BY_REFUSAL: dict[Refusal, Reason] = {
    "version": Reason.VERSION,
    "session": Reason.UNKNOWN_SESSION,
    "environment": Reason.ENVIRONMENT,
    "busy": Reason.BUSY,
}


#: types of the body entries of each kind, in order
BODIES: dict[Kind, tuple[Any, ...]] = {
    Kind.HELLO: (dict,),
    Kind.WELCOME: (dict,),
    Kind.ERROR: (str, str),
    Kind.BYE: (),
    Kind.RESET: (int | list | None, dict | None, list | None, float | None),
    Kind.STEP: (float | None,),
    Kind.OBS: (list, dict | None),
    Kind.INFER: (bool,),
    Kind.ACT: (int, list | None),
    Kind.ROLLOUT: (int, list, int),
    Kind.ACK: (int, int, float | None),
    Kind.WEIGHTS: (int, int, int, int, int),
    Kind.HERE: (),
    Kind.NEWS: (int, list, int | None),
}
#: kinds that are a header and nothing else
BARE_KINDS = frozenset({Kind.HELLO, Kind.WELCOME, Kind.ERROR, Kind.BYE, Kind.RESET, Kind.ACK, Kind.HERE, Kind.NEWS})
#: what answers each request
ANSWERS = {Kind.RESET: Kind.OBS, Kind.STEP: Kind.OBS, Kind.INFER: Kind.ACT}
_OF_SESSIONS = {Kind.WELCOME, Kind.ERROR, Kind.BYE, Kind.HERE}
#: what a server may send on each plane that has sessions
REPLY_KINDS = {
    Plane.STEPS: frozenset({Kind.OBS, *_OF_SESSIONS}),
    Plane.INFERENCE: frozenset({Kind.ACT, *_OF_SESSIONS}),
    Plane.ROLLOUTS: frozenset({Kind.ACK, *_OF_SESSIONS}),
}
Frames = tuple[Any, ...]  #: what follows a header: rows, or bytes
_KINDS = {int(kind): kind for kind in Kind}
_LEAD = 6  # entries before the body
#: the types that each entry can have
_TYPES = {kind: [get_args(entry) or (entry,) for entry in entries] for kind, entries in BODIES.items()}


@dataclass(frozen=True, slots=True)
class Header:
    """Frame 0 of every message."""

    kind: Kind
    sender: int  #: random 63-bit id of the client in this conversation, 0 on broadcasts
    slot: int = 0  #: which stream of that client; an actor has one per env group
    epoch: int = 0  #: random 63-bit id of one start of the server; 0 in a HELLO
    seq: int = 0  #: number of the request; a reply repeats it
    body: tuple[Any, ...] = ()  #: the entries of `BODIES[kind]`; when read, None for those left out


def pack_header(header: Header) -> bytes:
    """Encode a header.

    Raises:
      LocalProtocolError: no peer would accept it.
    """
    entries = [PROTOCOL_VERSION, int(header.kind), header.sender, header.slot, header.epoch, header.seq]
    body = header.body
    while body and body[-1] is None:
        body = body[:-1]
    if not all(map(_unsigned, entries)) or not _is_body(header.kind, body):
        raise LocalProtocolError(f"a header that no peer would accept: {header!s:.1000}")
    packed = pack([*entries, *body])
    if len(packed) > MAX_HEADER_BYTES:
        raise LocalProtocolError(f"{header.kind.name}: a header of {len(packed)} bytes, at most {MAX_HEADER_BYTES}")
    return packed


def unpack_header(data: bytes | memoryview, check: Callable[[int], None] = lambda _sender: None) -> Header:
    """Decode and check a header.

    `check` raises RemoteProtocolError if the header cannot be from this sender. It runs before the version check:
    otherwise a client would get an ERROR about the version of a message that another peer sent under its id.

    Raises:
      VersionMismatch: the peer uses another version.
      RemoteProtocolError: anything else is wrong with it.
    """
    if len(data) > MAX_HEADER_BYTES:
        raise RemoteProtocolError(f"a header of {len(data)} bytes, expected at most {MAX_HEADER_BYTES}")
    entries = unpack(data)
    if type(entries) is not list or len(entries) < 3 or not all(map(_unsigned, entries[:3])):
        raise RemoteProtocolError("a header is a list that starts with version, kind and sender")
    version, number, sender = entries[:3]
    check(sender)
    if version != PROTOCOL_VERSION:
        raise VersionMismatch(version, PROTOCOL_VERSION, sender)
    if len(entries) < _LEAD or not all(map(_unsigned, entries[:_LEAD])):
        raise RemoteProtocolError("a header has version, kind, sender, slot, epoch and seq, all unsigned integers")
    kind = _KINDS.get(number)
    if kind is None:
        raise RemoteProtocolError(f"unknown message kind {number}")
    body = tuple(entries[_LEAD:])
    if not _is_body(kind, body):
        wanted = ", ".join(getattr(entry, "__name__", str(entry)) for entry in BODIES[kind])
        raise RemoteProtocolError(f"{kind.name} has a body of ({wanted}), its integers unsigned")
    body += (None,) * (len(BODIES[kind]) - len(body))
    return Header(kind, sender, entries[3], entries[4], entries[5], body)


def _unsigned(entry: Any) -> bool:
    return type(entry) is int and 0 <= entry <= MAX_INTEGER


def _is_body(kind: Kind, body: tuple[Any, ...]) -> bool:
    types = _TYPES[kind]
    body += (None,) * (len(types) - len(body))  # those that are left out
    fits = len(body) == len(types) and all(type(entry) in known for entry, known in zip(body, types, strict=True))
    return fits and all(type(entry) is not int or _unsigned(entry) for entry in body)


def topic(plane: Plane, sender: int) -> bytes:
    """The 9 bytes that open every message to one client: fixed width, so that no topic is a prefix of another."""
    return plane.value + struct.pack("<Q", sender)


def sender_of(subscription: bytes) -> int | None:
    """The client behind a 9-byte subscription, or None if it is not one of ours."""
    return int.from_bytes(subscription[1:], "little") if len(subscription) == TOPIC_BYTES else None
