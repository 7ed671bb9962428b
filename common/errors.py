"""Every exception that this project raises on purpose.

BeastError
├── ConfigError            the user's setting is wrong: one sentence, exit 2, never retried
├── EnvError               an environment cannot be built or run: named, contained to its session
├── CheckpointError        a checkpoint is truncated, foreign or of another architecture: exit 2
├── Diverged               loss, gradient or weights are not finite: training cannot go on, exit 1
├── ProtocolError          a message that nobody can accept
│   ├── LocalProtocolError    we built it: our bug, crash
│   └── RemoteProtocolError   a peer built it: count it, drop it, go on
│       └── VersionMismatch      a peer speaks another version of the protocol
└── PeerLost               a peer stayed away past its deadline: exit 75, so that a supervisor retries
"""

from typing import Literal

#: Why a message was refused: the keys of `refused_by_reason` on health pages. No peer can add one.
Refusal = Literal[
    "header",
    "array",
    "version",
    "kind",
    "spec",
    "terms",
    "environment",
    "busy",
    "session",
    "order",
    "overlap",
    "payload",
    "action",
    "values",
    "episodes",
    "window",
    "slot",
    "layout",
    "checksum",
    "topic",
    "sender",
    "key",
]


class BeastError(Exception):
    """Base of every error raised on purpose. Its text is a sentence for the user."""

    exit_code = 1


class ConfigError(BeastError):
    exit_code = 2


class EnvError(BeastError):
    exit_code = 2


class CheckpointError(BeastError):
    exit_code = 2


class Diverged(BeastError):
    """Training has left the numbers behind: `what` happened, and settings of `algo` may help."""

    def __init__(self, what: str, algo: str) -> None:
        super().__init__(
            f"{what}: lower {algo}.learning_rate, or use --learner.precision float32; nothing of it was published, and "
            f"the last checkpoint is unharmed"
        )


class ProtocolError(BeastError):
    """A message does not follow `zerobeast.common.wire.messages`."""


class LocalProtocolError(ProtocolError):
    """This process tried to send a malformed message."""


class RemoteProtocolError(ProtocolError):
    """A peer sent a malformed message; `reason` is the counter that the refusal is added to."""

    def __init__(self, sentence: str, reason: Refusal = "header") -> None:
        super().__init__(sentence)
        self.reason: Refusal = reason


class VersionMismatch(RemoteProtocolError):
    """A peer speaks another protocol version; `sender` still says who it is."""

    def __init__(self, theirs: int, ours: int, sender: int) -> None:
        super().__init__(f"the peer speaks protocol version {theirs}, this process speaks {ours}", "version")
        self.sender = sender


class PeerLost(BeastError):
    exit_code = 75
