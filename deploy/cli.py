"""The `beast` command. Imports nothing heavy before it knows what is asked."""

from __future__ import annotations

import difflib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from common import __version__
from common.errors import BeastError, ConfigError
from common.text import printable
from deploy.signals import handled

HELP = """beast: distributed deep reinforcement learning as four small services

  beast train      train on this machine: env-server, actor, broker and learner, with one live view
  beast evaluate   play whole episodes with the policy of a run
  beast health     one line per service of a run, and which of them limits the throughput
  beast keygen     make keys for encrypted tcp
  beast tune       find the fastest settings for this machine by short trials
  beast bench      measure this machine's limit, the training rate beside it, and the planes
  beast chaos      kill services, break the network or attack a run, and see whether every promise holds
  beast --version

  beast train                                        Pong, in runs/<env>-<algorithm>-<date>
  beast train --env CartPole-v1 --total_steps 500000
  beast train --name X                               continue run X where its checkpoint stands
  beast evaluate X --episodes 10

Every command explains itself with --help. Services also run by hand: python -m services.broker --help"""

TRAIN_HELP = """beast train [--name NAME] [--fresh] [--plain] [settings]

  --name NAME   of the run and its folder; a name that exists is continued with its saved settings
  --fresh       start over; the earlier run of that name is moved aside, nothing is deleted
  --plain       a line every few seconds instead of the live view

exit codes: 0 trained to the end; 2 bad input; 75 a service stayed away; 1 a service failed;
130 after Ctrl-C and 143 after SIGTERM, with a checkpoint; Ctrl-C twice ends everything at once
"""


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    _replace_closed_streams()
    try:
        code = _dispatch(sys.argv[1:] if argv is None else argv)
    except BrokenPipeError:
        code = 128 + signal.SIGPIPE
    _flush()
    return code


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        sys.stdout.write(HELP + "\n")
        return 0
    if argv[0] in ("--version", "-V"):
        sys.stdout.write(f"beast {__version__}\n")
        return 0
    if argv[0] not in COMMANDS:
        return _unknown(argv[0])
    return _guarded(argv[0], argv[1:])


def _replace_closed_streams() -> None:
    """Give a process that was started without stdout or stderr one that swallows everything."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - until the process ends


def _flush() -> None:
    """Write what is buffered; where nobody reads it any more, keep Python from complaining about that at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _guarded(name: str, argv: list[str]) -> int:
    """Run a command; errors that are meant for the user become one sentence."""
    try:
        with handled((signal.SIGTERM, signal.SIGHUP), _unwind):  # leaving no process and no folder, as after Ctrl-C
            return COMMANDS[name](argv)
    except BeastError as error:
        code, sentence = error.exit_code, printable(str(error), lines=True)
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        code, sentence = 2, f"{error.name} is not installed: pip install 'zerobeast[{EXTRAS[error.name]}]'"
    except KeyboardInterrupt:
        return 130
    mistakes = sentence.splitlines()
    sys.stderr.write(f"beast {name}: {sentence}\n" if len(mistakes) == 1 else f"beast {name}:\n")
    sys.stderr.writelines(f"  {mistake}\n" for mistake in mistakes if len(mistakes) > 1)
    return code


def _unwind(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _train(argv: list[str]) -> int:
    if _asks_for_help(argv):
        from common.config.load import settings_help

        sys.stdout.write(f"{TRAIN_HELP}\n{settings_help()}\n")
        return 0
    from deploy.local.launcher import train

    return train(argv, os.environ)


def _evaluate(argv: list[str]) -> int:
    from deploy.local.evaluate import main as evaluate

    return evaluate(argv)


def _bench(argv: list[str]) -> int:
    from deploy.bench import main as bench

    return bench(argv)


def _chaos(argv: list[str]) -> int:
    from deploy.chaos import main as chaos

    return chaos(argv)


def _tune(argv: list[str]) -> int:
    from deploy.tune import main as tune

    return tune(argv)


def _health(argv: list[str]) -> int:
    from deploy.health.command import main as health

    return health(argv)


def _keygen(argv: list[str]) -> int:
    from deploy.keygen import main as keygen

    return keygen(argv)


def _asks_for_help(argv: list[str]) -> bool:
    return any(flag in ("-h", "--help") for flag in argv)


def _unknown(name: str) -> int:
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(COMMANDS)}"
    what = "option" if name.startswith("-") else "command"
    sys.stderr.write(f"beast: unknown {what} {name!r}; {hint}\n")
    return ConfigError.exit_code


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "evaluate": _evaluate,
    "health": _health,
    "keygen": _keygen,
    "tune": _tune,
    "bench": _bench,
    "chaos": _chaos,
}
#: module that a command needs -> the extra that brings it
EXTRAS = {"rich": "cli", "psutil": "cli", "torch": "learner", "gymnasium": "envserver", "matplotlib": "dev"}


if __name__ == "__main__":
    sys.exit(main())
