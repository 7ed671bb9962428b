"""A run as a job of a real Slurm, with two nodes on this machine."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.helpers import free_port, wait_until
from zerobeast.cli.slurm import main
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import evaluations, metrics

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
PATHS = "/usr/sbin:/usr/bin"

pytestmark = [
    pytest.mark.skipif(
        os.getuid() != 0 or not all(shutil.which(program, path=PATHS) for program in PROGRAMS),
        reason="needs root and slurm-wlm with munge",
    )
]

#: how long Slurm holds back a requeued job (default 120 s), since a node that returns may still report the old job
REQUEUE_S = 15
FIRST_JOB = 3100  #: its learner listens at 32400, which no other test is given

CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire={requeue_s}
SchedulerParameters=sched_interval=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SlurmdTimeout=5
ReturnToService=2
FirstJobId={first_job}
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=2 RealMemory=1000
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=2 RealMemory=1000
PartitionName=main Nodes=node1,node2 Default=YES State=UP
"""


class Cluster:
    """The daemons of a cluster, started one by one."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        key = folder / "munge.key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o600)
        (folder / "state").mkdir()
        ports = {name: free_port() for name in ("controller", "first", "second")}
        host = socket.gethostname().partition(".")[0]
        (folder / "slurm.conf").write_text(
            CONFIG.format(folder=folder, host=host, requeue_s=REQUEUE_S, first_job=FIRST_JOB, **ports)
        )
        self.daemon(
            *("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={key}"),
            *(f"--pid-file={folder}/munge.pid", f"--seed-file={folder}/munge.seed", f"--log-file={folder}/munge.log"),
        )
        wait_until((folder / "munge.socket").exists)
        self.daemon("slurmctld", "-D")
        self.nodes = {name: self.daemon("slurmd", "-D", "-N", name) for name in ("node1", "node2")}

    def daemon(self, program: str, *flags: str) -> subprocess.Popen[bytes]:
        path = shutil.which(program, path=PATHS)
        assert path is not None
        with (self._folder / f"{program}.log").open("ab") as log:
            found = subprocess.Popen([path, *flags], stdout=log, stderr=log)
        self._stack.callback(found.wait)
        self._stack.callback(found.terminate)
        return found

    def idle(self) -> bool:
        """Whether both nodes have reported that they run nothing."""
        return ask("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "2"

    def fail(self, node: str) -> None:
        """Kill a node: its daemon and all that it runs."""
        on_it = [each for each in psutil.process_iter() if _node_of(each) == node]
        self.nodes[node].kill()
        for process in on_it:
            process.kill()


def _node_of(process: psutil.Process) -> str:
    try:
        return process.environ().get("SLURMD_NODENAME", "")
    except psutil.Error:
        return ""


def ask(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    with ExitStack() as stack:
        found = Cluster(tmp_path, stack)
        wait_until(found.idle, 30)
        stack.callback(lambda: wait_until(found.idle))
        stack.callback(lambda: subprocess.run(["scancel", "--name=x"], check=False))
        yield found


@pytest.mark.timeout(600)
def test_a_run_goes_on_after_a_node_has_failed_and_after_its_time_limit(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "x"
    flags = ["--nodes", "2", "--cores", "1", "--submit", "--root", str(folder.parent), "--name", "x"]
    flags += ["--env", "CartPole-v1", "--preset", "classic", "--total_steps", "1000000000"]
    flags += ["--evaluate.every_steps", "20000", "--evaluate.episodes", "1", "--evaluate.max_steps", "100"]
    with pytest.raises(ConfigError, match="only 2 nodes"):
        main([*flags, "--nodes", "3"])
    assert main([*flags, "--learner.checkpoint_every_s", "1"]) == 0
    with pytest.raises(ConfigError, match=f"job {FIRST_JOB}"):
        main([*flags, "--security.keys", str(folder / "keys")])
    wait_until((folder / "checkpoint.pt").exists, 120)
    wait_until(lambda: evaluations.read_evaluations(folder), 120)
    cluster.fail("node2")
    wait_until(pending, 120)
    cluster.nodes["node2"] = cluster.daemon("slurmd", "-D", "-N", "node2")
    assert goes_on(folder) == 1
    ask("scancel", "--batch", "--signal=USR1", "--name=x")  # as Slurm does before the time limit
    wait_until(pending, 120)
    assert goes_on(folder) == 2
    ask("scancel", "--name=x")
    wait_until(lambda: not ask("squeue", "-h"))


def pending() -> bool:
    return "PENDING" in ask("squeue", "-h", "-o", "%T")


def goes_on(folder: Path) -> int:
    """Wait until the requeued job trains on, and return how often the run was continued."""
    before = metrics.read_last_row(folder)["agent_steps"]
    wait_until(lambda: metrics.read_last_row(folder).get("agent_steps", 0) > before, 120)
    return (folder / "logs" / "learner-0.log").read_text().count("continuing")
