"""The batch script of a run."""

import subprocess
from pathlib import Path

import pytest

from tests.build.commands import program
from tests.build.errors import refuses
from zerobeast.cli.slurm import JOB, main
from zerobeast.common.config.load import load_config
from zerobeast.common.files import run_files
from zerobeast.rl.replay import disk

RUN = ["--env", "CartPole-v1", "--name", "x"]
WORKS = "exec sleep 60"


def written(root: Path, *flags: str) -> str:
    assert main(["--root", str(root), *RUN, *flags]) == 0
    return (root / "x" / JOB).read_text()


def test_the_script_is_valid_bash_with_the_requested_sbatch_options(tmp_path: Path) -> None:
    flags = ("--nodes", "3", "--cores", "16", "--time", "1:00:00", "--partition", "gpu", "--sbatch=--gres=gpu:1")
    text = written(root := tmp_path / "with a space", *flags)
    subprocess.run(["bash", "-n"], input=text.encode(), check=True)
    assert "PYTHONPATH" not in text, "the folder of the job would hide what is installed"
    options = "--nodes=3 --ntasks-per-node=16 --time=1:00:00 --partition=gpu --gres=gpu:1 --requeue"
    assert {f"#SBATCH {option}" for option in options.split()} <= set(text.splitlines())
    for file in ("learner'-0.json", "evaluator'-0.json", 'worker\'-"$SLURM_PROCID".json'):
        assert f"{root}/x/services/{file}" in text, "where its page is announced"


def test_the_run_folder_has_settings_and_keys_and_keeps_its_keys(tmp_path: Path) -> None:
    written(tmp_path)
    folder = tmp_path / "x"
    keys = {file: file.read_bytes() for file in (folder / run_files.KEYS).rglob("*.key*")}
    assert keys
    assert "CartPole-v1" in (folder / "config.yaml").read_text()
    text = written(tmp_path, "--learner.batch_size", "4")
    config = load_config(["--config", str(folder / "config.yaml")], {})
    assert (config.security.keys, text.count("--confirmed ")) == (str(folder / run_files.KEYS), 3)
    assert {file: file.read_bytes() for file in (folder / run_files.KEYS).rglob("*.key*")} == keys
    assert "batch_size: 4" in (folder / "config.yaml").read_text()


def test_the_learners_ports_are_below_those_that_the_kernel_gives_to_clients(tmp_path: Path) -> None:
    (line,) = [line for line in written(tmp_path).splitlines() if line.startswith("port=")]
    numbers = "".join(f"SLURM_JOB_ID={number}; {line}\necho $port\n" for number in (0, 1, 3189, 3190, 9999, 67_043_327))
    ports = [*map(int, subprocess.run(["bash", "-c", numbers], capture_output=True, check=True).stdout.split())]
    assert ports[:2] == [20_000, 20_004], "the learner has three sockets"
    assert max(ports) + 2 < 32_768


def test_what_cannot_run_or_is_queued_is_not_submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "sbatch", 'echo "$@" >> "$0.called"')
    program(tmp_path / "squeue", f"echo '6|PENDING|'; echo '7|PENDING|{tmp_path}/x/{JOB}'")
    for path, job in (("", ""), (f"{tmp_path}:/usr/bin:/bin", "scancel 7")):
        monkeypatch.setenv("PATH", path)
        with refuses("submit") as caught:
            written(tmp_path, "--submit")
        assert job in str(caught.error)
        assert not (tmp_path / "x").exists()
    program(tmp_path / "squeue", f"echo '7|PENDING|{tmp_path}/elsewhere/x/{JOB}'")
    written(tmp_path, "--submit")
    assert (tmp_path / "sbatch.called").read_text() == f"{tmp_path}/x/{JOB}\n"
    monkeypatch.setattr(disk, "file_system", lambda _folder: "nfs4")
    with refuses("learner.store"):
        written(tmp_path / "nfs", "--algo", "dqn")
    written(tmp_path / "nfs", "--algo", "dqn", "--learner.store", "/scratch")


@pytest.mark.parametrize(
    ("learner", "workers", "evaluator", "code", "left"),
    [
        (WORKS, "exit 3", WORKS, 3, True),
        ("exit 4", WORKS, WORKS, 4, True),
        ("sleep 0.5; exit 0", "exit 0", f"sleep 1; rm $POLICY; {WORKS}", 0, False),
        ("sleep 0.5; exit 0", WORKS, "exit 2", 0, True),
    ],
)
def test_a_job_exits_with_the_code_of_whatever_ended_it_and_once_all_is_evaluated(
    tmp_path: Path, learner: str, workers: str, evaluator: str, code: int, left: bool
) -> None:
    """Run its script with an srun that starts nothing.

    Settings in the environment of the submitting shell must not reach the job.
    """
    written(tmp_path, "--evaluate.times", "2")
    earlier = tmp_path / "x" / "services" / "actor-9.json"
    earlier.touch()
    case = f'case "$*" in *learner-0*) {learner};; *evaluator-0*) {evaluator};; *) {workers};; esac'
    program(tmp_path / "srun", f'[ "$BEAST_NAME" ] && exit 9\n{case}')
    program(tmp_path / "scontrol", "echo node1 NodeAddr=127.0.0.1 ")
    program(tmp_path / "squeue", "echo COMPLETING")
    policy = tmp_path / "x" / run_files.TO_EVALUATE / "8.pt"
    policy.parent.mkdir()
    policy.touch()
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "1", "BEAST_NAME": "another", "POLICY": str(policy)}
    ended = subprocess.run(["bash", tmp_path / "x" / JOB], env=environ, timeout=30)
    assert (ended.returncode, policy.exists()) == (code, left)
    assert not earlier.exists(), "a service of an earlier job"


@pytest.mark.parametrize(("code", "state", "times"), [(1, "RUNNING", 5), (2, "RUNNING", 0), (1, "COMPLETING", 0)])
def test_a_job_whose_learner_fails_is_requeued_five_times_but_not_for_a_wrong_setting(
    tmp_path: Path, code: int, state: str, times: int
) -> None:
    written(tmp_path)
    program(tmp_path / "srun", f'case "$*" in *learner-0*) exit {code};; *) {WORKS};; esac')
    program(tmp_path / "scontrol", f"[ $1 = requeue ] && echo >> {tmp_path}/requeued; echo node1 NodeAddr=127.0.0.1 ")
    program(tmp_path / "squeue", f"mkdir $0.failed 2>/dev/null || echo {state}")
    program(tmp_path / "sleep", "[ $1 = 60 ] && exec /bin/sleep 60")
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "1"}
    for start in range(7):
        job = ["bash", str(tmp_path / "x" / JOB)]
        ended = subprocess.run(job, env=environ | {"SLURM_RESTART_COUNT": str(start)}, timeout=30)
    requeued = tmp_path / "requeued"
    assert (len(requeued.read_text()) if requeued.exists() else 0, ended.returncode) == (times, code)
