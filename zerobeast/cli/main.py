"""beast: distributed deep reinforcement learning as four small services

{commands}
  beast --version

  beast train                                        Pong, in runs/<env>-<algorithm>-<date>
  beast train --env CartPole-v1 --total_steps 500000
  beast train --env CartPole-v1 --algo ppo --help    all settings with their values for this command line
  beast train --name X                               resume run X from its checkpoint
  beast evaluate X --episodes 10

Every command has --help. Services can also be started by hand:

  python -m zerobeast.services.broker --help
"""

# imports nothing heavy before the command is chosen
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from zerobeast import commands
from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.extras import how_to_install
from zerobeast.common.files.atomic import explain_os_errors
from zerobeast.common.plugins import find_entry_points, load_reference, reference_of
from zerobeast.common.process.environ import NO_PLUGINS, SAFE_PATH
from zerobeast.common.process.logs import escape_remarks
from zerobeast.common.process.signals import handle_signals
from zerobeast.common.process.terminal import write
from zerobeast.version import __version__

COMMANDS = {
    "train": "train on this machine, with a live view of all services",
    "check": "play an environment with random actions and report problems",
    "evaluate": "evaluate the policy of a run in whole episodes",
    "record": "record a video of episodes, with the policy's values and action probabilities",
    "watch": "show the live view of a run that was started elsewhere",
    "runs": "list the runs in a folder: state, steps, scores, age, size",
    "plot": "plot learning curves, with confidence intervals over seeds",
    "compare": "compare the results of runs in a table, with confidence intervals",
    "export": "export a policy: weights with a model card, or an ONNX graph",
    "track": "send the metrics of a run to an experiment tracker",
    "health": "show the services of a run and the one that limits the throughput",
    "slurm": "write the batch script of a run for a Slurm cluster, and submit it",
    "doctor": "describe this installation and train for five seconds, in half a minute: for a bug report",
    "keygen": "make keys for encrypted tcp",
    "sweep": "train a grid or random sample of settings, each run on its own cores",
}
#: commands of the package zerobeast-tools, in case it is not installed
TOOLS = dict.fromkeys(("tune", "bench", "chaos"), "needs zerobeast-tools: pip install ./tools in a clone of ZeroBeast")


def main(argv: list[str] | None = None) -> int:
    _replace_closed_streams()
    escape_remarks()
    os.environ.update(NO_PLUGINS | SAFE_PATH)
    argv, code = sys.argv[1:] if argv is None else argv, 0
    try:
        if argv[:1] in (["--version"], ["-V"]):
            write(f"beast {__version__}")
        else:
            known = (
                COMMANDS
                if argv and argv[0] in COMMANDS
                else COMMANDS | TOOLS | commands.find_package_commands() | COMMANDS
            )
            code = commands.run_command("beast", __doc__, known, argv, _run_guarded)
    except BrokenPipeError:
        code = 128 + signal.SIGPIPE
    _flush()
    return code


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


def _run_guarded(name: str, argv: list[str]) -> int:
    """Run a command; errors that are meant for the user become one sentence."""
    try:
        with handle_signals(
            (signal.SIGINT, signal.SIGTERM, signal.SIGHUP), _unwind
        ):  # leaving no process and no folder
            with explain_os_errors("the current folder"):
                os.getcwd()
            return call_command(name, argv)
    except BeastError as error:
        code, sentence = error.exit_code, str(error)
    except ModuleNotFoundError as error:
        code, sentence = ConfigError.exit_code, how_to_install(error, "train")
    except KeyboardInterrupt:
        return 130
    mistakes = sentence.split("\n")
    write(f"beast {name}: {sentence}" if len(mistakes) == 1 else "\n  ".join((f"beast {name}:", *mistakes)), sys.stderr)
    return code


def call_command(name: str, argv: list[str]) -> int:
    """Run a command of ours, or one that an installed package brings.

    Raises:
      BeastError: its sentence is for the user.
    """
    if name in COMMANDS:
        return commands.run_module("zerobeast.cli", name, argv)
    if name not in find_entry_points(commands.GROUP):
        raise ConfigError(TOOLS[name])
    what = f"command {name}"
    return int(load_reference(reference_of(commands.GROUP, name, what), what)(argv) or 0)


def _unwind(number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
