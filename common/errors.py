"""Every exception that this project raises on purpose. Each docstring describes how the exception is handled."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    """A setting is unknown, missing, of the wrong type or impossible: one sentence for each mistake, never retried."""

    exit_code = 2


class DiskError(ConfigError):
    """A file cannot be written now, since a disk is full or fails, or no file is left: a supervisor retries."""

    exit_code = 75


class Refused(ConfigError):
    """A server refused a request; `reason` is one of `zerobeast.common.wire.messages.Reason`."""

    def __init__(self, sentence: str, reason: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class StoreError(ConfigError):
    """The learner's own disk cannot hold the run: the learner ends, whichever actor asked."""


class EnvError(BeastError):
    """An environment cannot be made, reset or stepped: the error names it and stays within its session."""

    exit_code = 2


class WrongInterface(EnvError):
    """An environment's methods do not take or return what gymnasium's do: another try cannot help."""


class Misfit(EnvError):
    """A value has another shape or type than its space, which is likely to recur: without a step that fits, it must."""


class CheckpointError(BeastError):
    """A checkpoint is truncated, foreign or of another architecture."""

    exit_code = 2


class Diverged(BeastError):
    """Loss, gradient or weights are not finite: `what` names which, and a lower `rate`, a setting, may help."""

    def __init__(self, what: str, rate: str) -> None:
        super().__init__(
            f"{what}: lower {rate}, or use --learner.precision float32; nothing of it was published, and "
            f"the last checkpoint is unharmed"
        )


class LocalProtocolError(BeastError):
    """This process tried to send a malformed message: a bug of ours, so the process crashes."""


class RemoteProtocolError(BeastError):
    """A peer broke the rules of `zerobeast.common.wire.messages`: counted under `reason`, dropped, and we go on."""

    def __init__(self, sentence: str, reason: Refusal = "header") -> None:
        super().__init__(sentence)
        self.reason: Refusal = reason


class VersionMismatch(RemoteProtocolError):
    """A peer uses another protocol version; `sender` still identifies it."""

    def __init__(self, theirs: int, ours: int, sender: int) -> None:
        super().__init__(f"the peer uses protocol version {theirs}, this process uses {ours}", "version")
        self.sender = sender


class PeerLost(BeastError):
    """A peer was unreachable past its deadline: a supervisor retries."""

    exit_code = 75


@contextmanager
def raising(kind: Callable[[str], Exception], what: str, *foreign: type[Exception]) -> Iterator[None]:
    """In place of `foreign` exceptions, raise one of this kind, whose text is `what`, a colon and their reason.

    The reason is the text of an error of ours, that of the system without its number, or the first line of any other's.
    """
    try:
        yield
    except foreign as error:
        first_line = f"{type(error).__name__}: {error}".partition("\n")[0]
        reason = str(error) if isinstance(error, BeastError) else getattr(error, "strerror", None) or first_line
        raise kind(f"{what}: {reason}" if what else reason) from error
