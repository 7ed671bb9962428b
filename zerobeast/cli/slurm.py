"""Write the batch script of a run for a Slurm cluster (`sbatch`) into the run's folder.

  beast slurm [--nodes N] [--cores C] [--submit] [--name NAME] [settings]

All nodes must share the file system of that folder and have this Python environment at the same path. The script starts
one learner on the first node of the job, an evaluator on the same node if the run has evaluations, and one worker per
core on all nodes. A worker is an env-server, an actor and a broker. Workers reach the learner at the address of its
node, and all traffic between nodes is encrypted with keys of the run.

The job ends with the run. A requeued job, for example after a node failure, resumes from the checkpoint, and so does
another job with the same --name.
"""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from datetime import datetime
from functools import partial
from importlib import resources
from pathlib import Path

from zerobeast.api.parent import parent_of
from zerobeast.cli.train import show_help
from zerobeast.common.config.load import Request
from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.files import run_files
from zerobeast.common.files.atomic import write_atomically
from zerobeast.common.process.terminal import say, write
from zerobeast.common.settings import NO_GUARD, REACH, RunConfig, setting
from zerobeast.discovery.containers import read_output
from zerobeast.launcher.hosts import worker_flags
from zerobeast.plan.preparation import prepare_run
from zerobeast.plan.processes import service_command, settings_flags
from zerobeast.plan.resolution import RunFlags, resolve_run
from zerobeast.rl.replay.disk import explain_unfit

JOB = "job.sh"  #: in the run's folder
SAVE_S = 120  #: how long before the time limit the learner is asked to end


class SlurmFlags(RunFlags):
    """Flags of the command itself."""

    nodes: int = setting(2, "number of nodes", ge=1, le=10_000)
    cores: int = setting(4, "cores per node, with one worker on each", ge=1, le=1024)
    time: str = setting(
        "",
        "time limit of the job, as for sbatch; the learner saves before it, and the job is requeued",
        decides=NO_GUARD,
    )
    partition: str = setting("", "partition to submit to; empty: the cluster's default", decides=NO_GUARD)
    sbatch: str = setting("", 'more sbatch options, such as "--gres=gpu:1 --account=me"', decides=REACH)
    submit: bool = setting(default=False, meaning="submit the script now")


def main(argv: list[str]) -> int:
    """Run `beast slurm`. Raises ConfigError if nothing was written, and BeastError if sbatch failed."""
    if show_help("beast slurm", __doc__, argv, SlurmFlags):
        return 0
    now = datetime.now().astimezone()
    request = Request.of_flags(argv, os.environ, SlurmFlags)
    resolved = resolve_run(request, now, parent=parent_of(request), here=False)
    flags: SlurmFlags = resolved.flags
    _demand_disk(resolved.config)
    if flags.submit:
        _demand_no_job(resolved.config)
    with prepare_run(resolved, partial(say, file=sys.stderr), several=True, later=True) as run:
        job = run.config.folder / JOB
        write_atomically(job, batch_script(run.config, flags, Path.cwd()), durable=True)
    for line in run.notes:
        say(line, sys.stderr)
    write(str(job))
    if flags.submit:
        # sbatch prints the job's number
        done = subprocess.run(["sbatch", str(job.resolve())], check=False)  # noqa: S607 - wherever the user's PATH has it
        if done.returncode:
            raise BeastError(f"sbatch ended with {done.returncode}; the script is {job}")
    return 0


def _demand_disk(config: RunConfig) -> None:
    """Raise ConfigError if the run's folder, which all nodes share, can hold no replay but has to."""
    if config.algorithm.replays and not config.learner.store and (why := explain_unfit(config.folder)):
        raise ConfigError(
            f"algo {config.section} needs a local disk for its replay, but {config.folder} {why}: "
            f"name a folder on a disk of the nodes by --learner.store",
            path="learner.store",
        )


def _demand_no_job(config: RunConfig) -> None:
    """Raise ConfigError if nothing can be submitted here, or a job of this run is queued or runs already."""
    if shutil.which("sbatch") is None:
        raise ConfigError(
            "--submit: sbatch is not installed here; without --submit only the script is written", path="submit"
        )
    jobs = ""
    with contextlib.suppress(ConfigError):  # sbatch will report what is wrong
        jobs = read_output(["squeue", "--noheader", "--me", f"--name={config.name}", "--format=%i|%T|%o"])
    for number, state, script in re.findall(r"^([^|\n]+)\|([^|\n]+)\|(.+)$", jobs, re.MULTILINE):
        if Path(script) == (config.folder / JOB).resolve():
            raise ConfigError(
                f"--submit: run {config.name!r} is {state} as job {number}; `scancel {number}` ends it", path="submit"
            )


def batch_script(config: RunConfig, flags: SlurmFlags, here: Path) -> str:
    """The batch script of a run.

    Args:
      config: settings of the run.
      flags: flags of the job.
      here: folder from which the user's own environments are imported.
    """
    folder = (here / config.folder).resolve()
    limits = [f"--{name}={value}" for name in ("time", "partition") if (value := getattr(flags, name))]
    options = (
        f"--job-name={config.name}",
        f"--nodes={flags.nodes}",
        f"--ntasks-per-node={flags.cores}",
        "--cpus-per-task=1",
        f"--output={shlex.quote(str(folder))}/{run_files.LOGS}/slurm-%j.log",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:USR1@{SAVE_S}",
        *limits,
        flags.sbatch,
    )
    variables = {
        "here": here,
        "logs": folder / run_files.LOGS,
        "services": folder / run_files.SERVICES,
        "waiting": folder / run_files.TO_EVALUATE,
        "evaluates": "yes" if config.evaluates else "",
    }
    workers = slurm_command("worker", config, folder, number='"$SLURM_PROCID"')
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in options if option),
        *(f"{name}={shlex.quote(str(value))}" for name, value in variables.items()),
        f"learner_command=({slurm_command('learner', config, folder, '--learner.when_done', 'exit')})",
        f'worker_command() {{ {workers} {worker_flags(config, "SLURM_LOCALID")} "$@"; }}',
        # the next ports are the workers'
        f"evaluator_command() {{ {slurm_command('evaluator', config, folder, '--health.port', '0')}; }}",
        resources.files("zerobeast.cli").joinpath("slurm.sh").read_text(encoding="utf-8"),
    ]
    return "\n".join(lines)


def slurm_command(role: str, config: RunConfig, folder: Path, *flags: str, number: str = "0") -> str:
    """The command that starts a service of the run, whose folder this is, on any node; `number`, a word for a shell, is
    that of its status file.
    """
    settings = (*settings_flags(config, folder / run_files.CONFIG), "--root", str(folder.parent))
    status = shlex.quote(str(folder / run_files.SERVICES / role))
    return f"{shlex.join(service_command(role, *settings, *flags))} --status-file {status}-{number}.json"
