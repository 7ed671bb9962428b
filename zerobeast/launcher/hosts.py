"""Workers on other machines, reached by the user's own ssh. `beast train --hosts FILE` starts one for each host:

    python -m zerobeast.launcher.hosts OPTIONS      # as JSON

It sends the settings of the run, files that they refer to and the keys that workers need, starts the workers, and keeps
the connection: they end with it, and settings and keys are removed; after a crash of the host, that happens with the
first connection to it that begins more than 5 minutes later. If this machine vanishes, no connection ends: this side
sends a line every few seconds, and the host's side ends as well if none has come for SILENCE_S. A host that cannot be
reached at the start or has no zerobeast ends the run with a sentence, and so do settings that no worker there takes. A
connection that is lost later is made anew, since a run can do without some of its workers.
"""

import argparse
import io
import json
import logging
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from zerobeast.common.config.trust import confirmation, decisive_values, settings_to_confirm
from zerobeast.common.errors import ConfigError, PeerLost, raise_as
from zerobeast.common.files import run_files
from zerobeast.common.process.logs import log_to_stderr
from zerobeast.common.process.roles import SERVICES_BY_PROCESS
from zerobeast.common.process.signals import handle_signals
from zerobeast.common.process.terminal import write
from zerobeast.common.settings import RunConfig
from zerobeast.common.text import as_text

log = logging.getLogger(__name__)

#: the keys that a worker needs
FOR_WORKERS = ("public", "secret/actor.key_secret", "secret/broker.key_secret")
PAUSE_S, STOP_S, TURN_S = 5.0, 8.0, 1.0
SILENCE_S = 30.0
#: the user's own ssh, with the settings of ~/.ssh/config
OPTIONS = ("BatchMode=yes", "ConnectTimeout=20", "ServerAliveInterval=15", "ServerAliveCountMax=4")
SSH = ("ssh", *(word for option in OPTIONS for word in ("-o", option)))

#: runs on the host. Standard input has the archive and then a line now and then; it ends when the connection does.
SCRIPT = """
finish() {{
  trap "" TERM
  kill 0
  rm -rf "$folder"/{keys}/secret # now: the rest of the session may be killed with its end
  (sleep {stop}; rm -rf "$folder"; kill -KILL 0) > /dev/null 2>&1 < /dev/null & # what does not end by itself
  exit "$1"
}}
umask 077
folder="$HOME"/.zerobeast/{name}
group="$folder"/group # of a connection that was lost, which this side may not have noticed
old=$(cat "$group" 2> /dev/null) && pgrep -g "$old" -f zerobeast > /dev/null && kill -s KILL -- "-$old"
# Folders that a crash has left have keys. Those in use are touched below; several hosts may share this home.
find "$HOME"/.zerobeast/ -mindepth 1 -maxdepth 1 -mmin +5 -exec rm -rf {{}} + 2> /dev/null
mkdir -p "$folder" && echo $$ > "$group" && head -c {size} | tar -xf - -C "$folder" && cd "$folder" || finish 1
export PYTHONUNBUFFERED=1
trap 'finish 143' TERM
exec 3<&0
(while timeout --foreground {silence} sh -c 'read -r line' <&3; do touch -c "$folder"; done; kill -TERM $$) &
exec 3<&- < /dev/null
loops=
for index in $(seq {first} {last}); do
  (until {worker} --index "$index"; do
    [ $? = 2 ] && exit 2 # bad input stays bad
    sleep {pause}
  done) &
  loops="$loops $!"
done
for loop in $loops; do
  wait "$loop"
  code=$?
done
finish "$code"
"""


class Host(NamedTuple):
    """A line of the file of hosts."""

    address: str  #: as ssh takes it
    workers: int
    python: str  #: interpreter that has zerobeast installed


def read_hosts(path: Path) -> list[Host]:
    """Hosts of a file: each line has the name for ssh, the number of workers, and its Python if not at this one's path.

    Raises:
      ConfigError: a line for every mistake.
    """
    with raise_as(ConfigError, f"--hosts {path}", OSError, UnicodeError):
        lines = path.read_text().splitlines()
    found, mistakes = [], []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        words = re.fullmatch(r"([^-\s]\S*)\s+(\d{1,4})(?:\s+(\S+))?", text)
        if words and 0 < int(words[2]) <= 1024:
            found.append(Host(words[1], int(words[2]), words[3] or sys.executable))
        elif text:
            sentence = f"{path}, line {number}: got {line.strip()!r}, expected: host workers [python]"
            mistakes.append(ConfigError(sentence, path="hosts", value=line.strip(), layer=f"{path}, line {number}"))
    if mistakes or not found:
        raise ConfigError.of(mistakes or [ConfigError(f"--hosts {path}: expected at least one host", path="hosts")])
    return found


def host_command(host: Host, first: int, config: RunConfig) -> list[str]:
    """argv of the process that looks after a host, whose workers are numbered from `first`."""
    options = {
        **host._asdict(),
        "first": first,
        "folder": str(config.folder),
        "keys": config.security.keys,
        "learner": config.learner.endpoint,  #: as the host reaches it
        "files": own_files(map(as_text, settings_to_confirm(config).values())),
        "flags": f"{shlex.join(confirmation(decisive_values(config)))} {worker_flags(config, f'(index - {first})')}",
        "supervisor_pid": os.getpid(),
    }
    return [sys.executable, "-P", "-m", "zerobeast.launcher.hosts", json.dumps(options)]


def worker_flags(config: RunConfig, index: str) -> str:
    """Flags of a worker that shares its machine with others, as words for a shell.

    Args:
      config: settings of the run.
      index: index of the worker on its machine, as an arithmetic expression of the shell.
    """
    device = "cpu" if config.broker.device == "auto" else config.broker.device  # one per core is too many for a GPU
    port = (
        f"$(({config.health.port + 1} + {len(SERVICES_BY_PROCESS['worker'])} * {index}))" if config.health.port else "0"
    )
    return f"--broker.device {shlex.quote(device)} --health.port {port}"


def main(argv: list[str]) -> int:
    """Look after a host, as described by `host_command`, until SIGTERM or the supervisor's end; returns the exit code.

    It is 75 if the host cannot be reached, 2 if no worker there can take the settings.
    """
    options = argparse.Namespace(**json.loads(argv[0]))
    log_to_stderr(options.address)
    if sentence := probe_host(options.address, options.python):
        write(f"worker: {sentence}", sys.stderr)
        return PeerLost.exit_code
    archive = pack(Path(options.folder), Path(options.keys), options.files)
    script = script_of(options, len(archive))
    ended = threading.Event()

    def over(within_s: float = 0.0) -> bool:
        return ended.wait(within_s) or os.getppid() != options.supervisor_pid

    with handle_signals((signal.SIGTERM, signal.SIGINT), lambda _number, _frame: ended.set()):
        while not over():
            code = connect(options.address, script, archive, over)
            if code == ConfigError.exit_code and not over():
                return code
            if not over():
                log.warning("ssh %s ended with %d: trying again in %g s", options.address, code, PAUSE_S)
                over(PAUSE_S)
    return 0


def probe_host(host: str, python: str) -> str:
    """A sentence on why ssh cannot connect or the host's Python cannot start a worker; empty if all is well."""
    probe = [*SSH, host, f"{_quote(python)} -P -c 'import zerobeast.services.worker'"]
    try:
        tried = subprocess.run(probe, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"ssh cannot be started: {error.strerror}"
    words = tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"]
    return f"ssh {host}: {words[-1]}" if tried.returncode else ""


def connect(host: str, script: str, archive: bytes, over: Callable[[float], bool]) -> int:
    """Run the script on a host until it ends or `over` returns true; returns ssh's exit code."""
    ssh = subprocess.Popen([*SSH, host, f"exec sh -c {shlex.quote(script)}"], stdin=subprocess.PIPE)
    assert ssh.stdin is not None, "it is a pipe"
    with suppress(BrokenPipeError), ssh:  # whatever is written when it has just ended
        ssh.stdin.write(archive)
        ssh.stdin.flush()
        while ssh.poll() is None and not over(TURN_S):
            ssh.stdin.write(b"\n")
            ssh.stdin.flush()
        ssh.stdin.close()
        try:
            ssh.wait(STOP_S)
        except subprocess.TimeoutExpired:
            ssh.kill()
    return ssh.wait()


def own_files(references: Iterable[str]) -> list[str]:
    """The files below this folder that references name: workers look for them in theirs."""
    homes = [part.rpartition(":")[0] for word in references for part in re.split("[,();]", word)]
    below = [home for home in homes if home.endswith(".py") and not {"/", ".."} & set(Path(home).parts)]
    return [home for home in below if Path(home).is_file()]


def pack(folder: Path, keys: Path, files: Iterable[str] = ()) -> bytes:
    """The settings of a run, the keys that workers need and files of this folder, as an uncompressed tar."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.add(folder / run_files.CONFIG, arcname=run_files.CONFIG)
        for part in FOR_WORKERS:
            archive.add(keys / part, arcname=f"{run_files.KEYS}/{part}")
        for file in dict.fromkeys(files):
            archive.add(file)
    return content.getvalue()


def script_of(options: argparse.Namespace, size: int) -> str:
    """The script that the host's shell runs."""
    flags = ["--config", run_files.CONFIG, "--security.keys", run_files.KEYS, "--learner.endpoint", options.learner]
    worker = f"-P -m zerobeast.services.worker {options.flags} {shlex.join(flags)}"  # the last of two flags counts
    return SCRIPT.format(
        name=shlex.quote(f"{Path(options.folder).name}-{secrets.token_hex(4)}"),  # other runs may have the same name
        size=size,
        first=options.first,
        last=options.first + options.workers - 1,
        worker=f"{_quote(options.python)} {worker}",
        keys=run_files.KEYS,
        pause=PAUSE_S,
        stop=STOP_S,
        silence=SILENCE_S,
    )


def _quote(path: str) -> str:
    """A path quoted for the shell of a host, with ~ as the home there."""
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
