"""The `beast` command: help, mistakes, how it ends, and what it imports."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers import bring
from zerobeast import commands
from zerobeast.cli import main as cli
from zerobeast.common.config.hints import elsewhere
from zerobeast.common.config.table import SHORT, TREE, settings_of
from zerobeast.common.errors import BeastError
from zerobeast.plan.settle import RunFlags

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("redirection", "code"), [("| true", 141), (">&-", 0), ("2>&-", 0)])
def test_output_without_a_reader_causes_no_crash(redirection: str, code: int) -> None:
    beast = f"{sys.executable} -c 'import sys; from zerobeast.cli.main import main; sys.exit(main([\"--help\"]))'"
    script = f"set -o pipefail; (sleep 0.3; {beast}) {redirection}"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (code, b"")


def test_help_shows_the_values_that_the_given_flags_lead_to_despite_a_mistake(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--env=CartPole-v1", "--algo=ppo", "--learner.batch_size", "4"]
    assert cli.main(["train", *flags, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for entry in (
        "--ppo.epochs 4 ",
        "[preset classic-ppo; default 10]",
        "--learner.batch_size 4 ",
        "[flag; default 32]",
    ):
        assert entry in text
    assert cli.main(["train", "--sede", "1", "--help"]) == 0
    assert ["--sede" in part for part in capsys.readouterr()] == [False, True]


def test_help_shows_the_algorithm_of_the_run_and_all_of_them_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    every = {"ppo", "dqn", "sac", "impala"}
    for words, sections in ((["--help"], {"ppo"}), (["-h", "all"], every), (["--help=all"], every)):
        assert cli.main(["train", *words, "--algo", "ppo", "--env", "CartPole-v1"]) == 0
        shown = set(re.findall(r"^  --(\w+)\.learning_rate ", capsys.readouterr().out, re.MULTILINE))
        assert shown & every == sections


def test_every_name_of_another_project_leads_to_a_setting_or_a_sentence() -> None:
    words = [*TREE, *(path.rpartition(".")[2] for path in TREE), *SHORT, *settings_of(RunFlags)]
    assert not [name for name, ours in elsewhere().items() if " " not in ours and ours not in words]
    assert not [name for name in elsewhere() if name in words], "it would never be looked up"


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (BeastError("the disk is full"), 1, "the disk is full\n"),
        (ModuleNotFoundError(name="rich"), 2, "rich is not installed: pip install 'zerobeast[cli]'\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_a_command_ends_with_a_sentence_and_an_exit_code_and_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: BaseException, code: int, said: str
) -> None:
    def fail(*_args: object) -> int:
        raise raised

    monkeypatch.setattr(commands, "run_module", fail)
    assert cli.main(["train"]) == code
    assert capsys.readouterr().err.removeprefix("beast train: ") == said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_command_that_is_asked_to_end_cleans_up_and_a_second_signal_does_not_interrupt_that(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    cleaned = []

    def command(*_args: object) -> int:
        try:
            os.kill(os.getpid(), number)
            time.sleep(10.0)
        finally:
            os.kill(os.getpid(), number)
            time.sleep(0.01)
            cleaned.append(True)
        return 0

    before = signal.signal(number, lambda *_: pytest.fail("the command has its own handler"))
    try:
        monkeypatch.setattr(commands, "run_module", command)
        try:
            ended: object = cli.main(["runs"])
        except SystemExit as error:
            ended = error.code
        assert (ended, cleaned) == (code, [True])
        assert getattr(signal.getsignal(number), "__name__", "") == "<lambda>", "as it was before"
    finally:
        signal.signal(number, before)


def test_a_command_of_another_package_is_listed_without_being_run_and_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "robot.py").write_text('"""drive a robot"""\nprint("imported")\nmain = len')
    monkeypatch.syspath_prepend(tmp_path)
    with bring(tmp_path, commands.GROUP, {"robot-1": "drive = robot:main"}):
        assert (cli.main(["--help"]), cli.main(["drive", "a", "b", "c"])) == (0, 3)
        monkeypatch.setattr(cli, "installed", lambda _group: {})
        assert cli.main(["bench"]) == 2
    listed, imported, _ = (said := capsys.readouterr()).out.partition("imported")
    assert ("drive     drive a robot\n" in listed, imported, "./tools" in said.err) == (True, "imported", True)


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import zerobeast.cli.main", ("torch", "numpy", "rich", "pydantic", "zmq")),
        ("import zerobeast.cli.train", ("torch", "zmq", "gymnasium")),
    ],
)
def test_nothing_heavy_is_imported(code: str, absent: tuple[str, ...]) -> None:
    check = f"{code}; import sys; print([name for name in {absent} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
