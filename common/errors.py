"""Every exception that this project raises on purpose. Each docstring describes how the exception is handled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from errno import EAGAIN, EDQUOT, EFBIG, EIO, EMFILE, ENFILE, ENOMEM, ENOSPC, ESTALE, ETIMEDOUT
from types import NoneType
from typing import Any, Literal, Self

from zerobeast.common.extras import extra_of, how_to_install
from zerobeast.common.text import MAX_SHORT, as_text, short

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


NO_VALUE: Any = object()  #: in place of a value, if an error is not about one
EMPTY_TYPES = (str, tuple, NoneType)  #: of fields that an error may lack


#: no space left, a quota or limit reached, a failing or absent disk, no descriptors or memory left, a lock
TRANSIENT_ERRNOS = frozenset((ENOSPC, EDQUOT, EFBIG, EIO, ESTALE, ETIMEDOUT, EMFILE, ENFILE, ENOMEM, EAGAIN))
RETRY_EXIT_CODE = 75  #: exit code of what another try may help


class BeastError(Exception):
    """Base of every error raised on purpose. Its text is a sentence for the user, its fields are the facts in that.

    A sentence that is not given follows from the fields: `<path> <value>: expected <expected>, because <cause>` of a
    setting, `<layer>: got <value>, expected ...` if a layer of settings gives it, and `<path> is <value>, expected ...`
    of an `argument` of a call or a part of one.

    Examples:
      >>> import zerobeast as zb
      >>> try:
      ...     zb.load("no-such-run")
      ... except zb.BeastError as error:
      ...     (type(error).__name__, error.exit_code)
      ('ConfigError', 2)
    """

    exit_code = 1

    def __init__(
        self,
        sentence: str = "",
        *,
        path: str = "",
        argument: str = "",
        value: Any = NO_VALUE,
        expected: str = "",
        cause: str = "",
        beside: Iterable[str] = (),
        layer: str = "",
    ) -> None:
        place = f"{layer}: got" if layer else f"{argument} is" if argument else ""
        because = f", because {cause}" if cause else ""
        setting = path if value is NO_VALUE else f"{path} {_format_value(value)}"
        start = f"{place} {short(value)}," if place else f"{setting}:"
        super().__init__(sentence or f"{start} expected {expected}{because}")
        self.path = path or argument  #: the setting, argument, flag, variable or file that is at fault
        self.value = None if value is NO_VALUE else value
        self.expected = expected
        self.cause = cause
        self.beside = tuple(beside)  #: paths of other settings that this one does not fit
        self.layer = layer  #: that gives the value, such as "flag --learner.batch_size"
        self.several: tuple[BeastError, ...] = ()  #: an error for each mistake if there is more than one

    @property
    def mistakes(self) -> tuple[BeastError, ...]:
        """An error for each mistake: this one if it is about a single one."""
        return self.several or (self,)

    def about(self, other: BaseException) -> Self:
        """This error with the fields of another one, of which its sentence tells more."""
        if isinstance(other, BeastError):
            own = vars(self)
            missing = [name for name in vars(other) if isinstance(own.get(name, 1), EMPTY_TYPES) and not own[name]]
            own.update({name: getattr(other, name) for name in missing})
        return self


def _format_value(value: Any) -> str:
    """A value as its setting is written, or else quoted."""
    is_word = isinstance(value, str) and len(value) <= MAX_SHORT and value.isprintable() and value.split() == [value]
    return as_text(value) if is_word or isinstance(value, bool) else short(value)


class ConfigError(BeastError):
    """A setting is unknown, missing, of the wrong type or impossible: one sentence for each mistake, never retried.

    Examples:
      >>> import zerobeast as zb
      >>> try:
      ...     zb.train("CartPole-v1", "ppo", 2_000, ppo={"clip": -1.0, "epochs": 0})
      ... except zb.ConfigError as error:
      ...     [(mistake.path, mistake.value) for mistake in error.mistakes]
      [('ppo.clip', -1.0), ('ppo.epochs', 0)]
    """

    exit_code = 2

    @classmethod
    def of(cls, mistakes: Iterable[BeastError], between: str = "\n") -> BeastError:
        """One error for all of these, of which none is said twice: by default a line for each."""
        found = {str(each): each for several in mistakes for each in several.mistakes}
        if len(found) == 1:
            return next(iter(found.values()))
        error = cls(between.join(found))
        error.several = tuple(found.values())
        return error


class DiskError(ConfigError):
    """A file cannot be written now, since a disk is full or fails, or no file is left: a supervisor retries."""

    exit_code = RETRY_EXIT_CODE


class RequestRefused(ConfigError):
    """A server refused a request; `reason` is one of `zerobeast.common.wire.messages.Reason`."""

    def __init__(self, sentence: str, reason: str, **facts: Any) -> None:
        super().__init__(sentence, **facts)
        self.reason = reason


class StoreError(ConfigError):
    """The learner's own disk cannot hold the run: the learner ends, whichever actor asked."""


class EnvError(BeastError):
    """An environment cannot be made, reset or stepped: the error names it and stays within its session.

    Examples:
      >>> import numpy as np
      >>> import zerobeast as zb
      >>> env = zb.OwnEnv.of(zb.EnvSpec("Catch-v0", zb.ArraySpace.box((50,)), zb.ArraySpace.discrete(3)))
      >>> try:
      ...     env.row(np.zeros(49, np.float32))
      ... except zb.EnvError as error:
      ...     error.exit_code
      2
    """

    exit_code = 2


class WrongInterface(EnvError):
    """An environment's methods do not take or return what gymnasium's do: another try cannot help."""


class Misfit(EnvError):
    """A value has another shape or type than its space, which is likely to recur: without a step that fits, it must."""


class CheckpointError(BeastError):
    """A checkpoint is truncated, foreign or of another architecture.

    Examples:
      >>> from pathlib import Path
      >>> import zerobeast as zb
      >>> size = Path("damaged.ckpt").write_bytes(b"no checkpoint")
      >>> try:
      ...     zb.load("damaged.ckpt")
      ... except zb.CheckpointError as error:
      ...     error.exit_code
      2
    """

    exit_code = 2


class TrainingDiverged(BeastError):
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

    def __init__(self, sentence: str, reason: Refusal = "header", **facts: Any) -> None:
        super().__init__(sentence, **facts)
        self.reason: Refusal = reason


class VersionMismatch(RemoteProtocolError):
    """A peer uses another protocol version; `sender` still identifies it."""

    def __init__(self, theirs: int, ours: int, sender: int) -> None:
        super().__init__(f"the peer uses protocol version {theirs}, this process uses {ours}", "version")
        self.sender = sender


class PeerLost(BeastError):
    """A peer was unreachable past its deadline: a supervisor retries.

    Examples:
      >>> import zerobeast as zb
      >>> with zb.Context() as context:
      ...     try:
      ...         zb.EnvClient(context, "tcp://127.0.0.1:9", {"id": "CartPole-v1"}, 1, seed=1, timeout_s=0.2)
      ...     except zb.PeerLost as error:
      ...         error.exit_code
      75
    """

    exit_code = RETRY_EXIT_CODE


def is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed later."""
    return (
        error.errno in TRANSIENT_ERRNOS
        if isinstance(error, OSError)
        else getattr(error, "exit_code", 0) == RETRY_EXIT_CODE
    )


@contextmanager
def name_subject(path: str, value: Any) -> Iterator[None]:
    """Name what is at fault in errors of ours that do not."""
    try:
        yield
    except BeastError as error:
        if not error.path:
            error.path, error.value = path, value
        raise


@contextmanager
def raise_as(kind: Callable[[str], Exception], what: str, *foreign: type[BaseException]) -> Iterator[None]:
    """In place of the exceptions of other code, raise one of this kind, whose text is `what`, a colon and their reason.

    The reason is the text of an error of ours, whose fields it keeps, how to install a package that is missing, the
    system's text without its number, or the first line of any other exception's text; all of that if `foreign` is any
    exception, which the author of the code may have to find. The exit code is that of another try if that may help.

    Args:
      kind: called with the text.
      what: what has failed; empty: the text is the reason alone.
      foreign: the exceptions; none given: all, but errors of this kind pass, and others of ours are raised without
        `what`, as they say themselves what has failed.
    """
    kinds = foreign or (Exception,)
    try:
        yield
    except kinds as error:
        ours = isinstance(error, BeastError)
        if not foreign and isinstance(kind, type) and isinstance(error, kind):
            raise
        reason = str(error) if ours else _reason(error, whole=Exception in kinds)
        raised = kind(f"{what}: {reason}" if what and (foreign or not ours) else reason)
        if isinstance(raised, BeastError):
            raised.about(error)
            raised.exit_code = RETRY_EXIT_CODE if is_transient(error) else raised.exit_code
        raise raised from error


def _reason(error: BaseException, *, whole: bool) -> str:
    """What an exception that is not ours says, in one line: all of it, or the first line."""
    missing = error if isinstance(error, ModuleNotFoundError) else error.__cause__  # gymnasium has errors of its own
    if isinstance(missing, ModuleNotFoundError) and extra_of(missing.name):
        return how_to_install(missing)
    if not whole and (known := getattr(error, "strerror", None)):
        return str(known)
    try:
        given = str(error)
    except Exception:  # that is foreign code too
        given = ""
    text = " ".join(given.split()) if whole else given.partition("\n")[0]
    return f"{type(error).__name__}: {text or 'no reason given'}"
