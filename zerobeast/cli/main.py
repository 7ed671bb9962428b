"""The `beast` command. Imports nothing heavy before it knows what is asked."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import FrameType

from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.runtime.extras import how_to_install
from zerobeast.common.runtime.signals import handled
from zerobeast.common.runtime.suggest import suggestion
from zerobeast.common.runtime.text import printable
from zerobeast.version import __version__

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
  beast train --env CartPole-v1 --algo ppo --help    every setting with the value that it would have
  beast train --name X                               continue run X where its checkpoint stands
  beast evaluate X --episodes 10

Every command explains itself with --help. Services run by hand as well:

  python -m zerobeast.services.broker --help"""


def main(argv: list[str] | None = None) -> int:
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
        what = "option" if argv[0].startswith("-") else "command"
        sys.stderr.write(f"beast: unknown {what} {argv[0]!r}{suggestion(argv[0], COMMANDS)}\n")
        return ConfigError.exit_code
    return _guarded(argv[0], argv[1:])


def _replace_closed_streams() -> None:
    """Give a process that was started without stdout or stderr one that swallows everything."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - until the process ends


def _flush() -> None:
    """Write what is buffered; if it has no reader any more, keep Python from complaining about that at exit."""
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
        code, sentence = ConfigError.exit_code, how_to_install(error)
    except KeyboardInterrupt:
        return 130
    mistakes = sentence.splitlines()
    sys.stderr.write(f"beast {name}: {sentence}\n" if len(mistakes) == 1 else f"beast {name}:\n")
    sys.stderr.writelines(f"  {mistake}\n" for mistake in mistakes if len(mistakes) > 1)
    return code


def _unwind(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _main_of(module: str) -> Callable[[list[str]], int]:
    """Its `main`, imported when it is called: what one command needs, the others do not wait for."""

    def main(argv: list[str]) -> int:
        code: int = import_module(module).main(argv)
        return code

    return main


COMMANDS = {
    **{name: _main_of(f"zerobeast.cli.{name}") for name in ("train", "evaluate", "health", "keygen", "tune")},
    **{name: _main_of(f"zerobeast.tools.{name}") for name in ("bench", "chaos")},
}
