"""Train all runs that a file describes, in <root>/<name>/, several at a time, each on its own cores.

After Ctrl-C or a crash, the same command resumes the sweep: finished runs are skipped, other runs resume from their
checkpoints, and failed runs are retried. At the end it prints the output of `beast compare` for the finished runs.

The flags below are also allowed in the file, without --. Two concurrent sweeps need separate cores:
taskset -c 0-7 beast sweep FILE. Every setting of the runs is a flag here too; a value in the file that imports a module
has to be repeated as a flag, such as --env my_module:MyEnv.

Exit code: 0 all runs finished; 1 a run failed, the others went on; 2 bad input, nothing was started; 130 after Ctrl-C
and 143 after SIGTERM, with checkpoints.

Example file:
"""

import sys
from pathlib import Path

from zerobeast import commands
from zerobeast.cli import compare
from zerobeast.common.config.describe import flags_help
from zerobeast.common.config.request import Request
from zerobeast.common.errors import ConfigError
from zerobeast.common.process.terminal import say, write
from zerobeast.results.run_results import load_run
from zerobeast.sweeping import spec
from zerobeast.sweeping.sweep import DONE_FATE, INTERRUPTED_FATE, plan_sweep, train_sweep

EXAMPLE = "\n".join((spec.__doc__ or "").splitlines()[2:])


def main(argv: list[str]) -> int:
    """Run `beast sweep`. Raises ConfigError if nothing was started."""
    parser = commands.make_parser(
        "beast sweep", f"{__doc__}\n{EXAMPLE}", "\n".join(flags_help(spec.SweepSettings)).strip()
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="YAML file: see above")
    own, flags = parser.parse_known_args(argv)
    sweep, trials, places = plan_sweep(own.file, Request.of_flags(flags, own=spec.SweepSettings))
    if sweep.own.dry_run:
        write("\n".join(f"{trial.name}  {' '.join(trial.flags)}" for trial in trials))
        return 0
    number, outcomes = train_sweep(sweep, trials, places)
    failed = {name: outcome for name, outcome in outcomes.items() if outcome not in (DONE_FATE, INTERRUPTED_FATE)}
    for name, sentence in failed.items():
        say(f"beast sweep: {name}: {sentence}", sys.stderr)
    if number:
        return 128 + number
    folders = [sweep.folder / name for name, outcome in outcomes.items() if outcome == DONE_FATE]
    if done := [str(folder) for folder in folders if _is_readable(folder)]:
        try:
            compare.main([*done, "--by-env"])
        except ConfigError as error:  # there is nothing to compare
            say(str(error), sys.stderr)
    return int(bool(failed))


def _is_readable(folder: Path) -> bool:
    """Whether a run can be compared; if it cannot, a line reports that."""
    try:
        load_run(folder)
    except ConfigError as error:
        say(f"left out: {error}", sys.stderr)
        return False
    return True
