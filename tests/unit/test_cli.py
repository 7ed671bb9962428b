"""The `beast` command: help, mistakes, how it ends, and what it imports."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zerobeast import commands
from zerobeast.cli import main as cli
from zerobeast.common.config.hints import elsewhere
from zerobeast.common.config.table import SHORT, TREE, settings_of
from zerobeast.common.errors import BeastError
from zerobeast.launcher.start import RunFlags
from zerobeast.version import __version__

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("argv", [[], ["-h"], ["help"]])
def test_beast_alone_explains_itself(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == cli.main(argv) == 0
    text = capsys.readouterr().out
    assert text == 2 * text[: len(text) // 2]


@pytest.mark.parametrize(("redirection", "code"), [("| true", 141), (">&-", 0), ("2>&-", 0)])
def test_output_without_a_reader_causes_no_crash(redirection: str, code: int) -> None:
    beast = f"{sys.executable} -c 'import sys; from zerobeast.cli.main import main; sys.exit(main([\"--help\"]))'"
    script = f"set -o pipefail; (sleep 0.3; {beast}) {redirection}"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (code, b"")


def test_the_version_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == cli.main(["-V"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second == f"beast {__version__}"


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_a_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = cli.main([command, "--help"])
    except SystemExit as end:
        code = end.code
    assert (code, "--seed" in capsys.readouterr().out) == (0, True)


@pytest.mark.parametrize(
    ("flags", "entries"),
    [
        ([], ["--preset atari ", "[chosen for PongNoFrameskip-v4 and impala; default empty]"]),
        (["--env", "Acrobot-v1"], ["--preset classic ", "--learner.batch_size 8 ", "[preset classic; default 32]"]),
        (["--env=CartPole-v1", "--algo=ppo"], ["--ppo.epochs 4 ", "[preset classic-ppo; default 10]"]),
        (["--learner.batch_size", "4"], ["--learner.batch_size 4 ", "[flag; default 32]"]),
    ],
)
def test_help_shows_the_values_that_the_given_flags_lead_to(
    capsys: pytest.CaptureFixture[str], flags: list[str], entries: list[str]
) -> None:
    assert cli.main(["train", *flags, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert all(entry in text for entry in entries)


@pytest.mark.parametrize("command", ["train", "slurm"])
def test_help_shows_the_algorithm_of_the_run_and_all_of_them_on_request(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    every = {"ppo", "dqn", "sac", "impala"}
    for words, sections in ((["--help"], {"ppo"}), (["-h", "all"], every), (["--help=all"], every)):
        assert cli.main([command, *words, "--algo", "ppo", "--env", "CartPole-v1"]) == 0
        shown = set(re.findall(r"^  --(\w+)\.learning_rate ", capsys.readouterr().out, re.MULTILINE))
        assert shown & every == sections


def test_every_name_of_another_project_leads_to_a_setting_or_a_sentence() -> None:
    words = [*TREE, *(path.rpartition(".")[2] for path in TREE), *SHORT, *settings_of(RunFlags)]
    assert not [name for name, ours in elsewhere().items() if " " not in ours and ours not in words]
    assert not [name for name in elsewhere() if name in words], "it would never be looked up"


def test_help_is_shown_despite_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--sede", "1", "--help"]) == 0
    said = capsys.readouterr()
    assert "--sede" in said.err
    assert "--seed 1 " in said.out


def test_a_mistake_makes_no_folder(tmp_path: Path) -> None:
    assert cli.main(["train", "--root", str(tmp_path), "--learner.batch_sise", "3"]) == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (BeastError("the disk is full"), 1, "beast train: the disk is full\n"),
        (
            ModuleNotFoundError("No module named 'rich'", name="rich"),
            2,
            "beast train: rich is not installed: pip install 'zerobeast[cli]'\n",
        ),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=["a failure meant for the user", "a missing extra", "an interrupt"],
)
def test_a_command_ends_with_a_sentence_and_an_exit_code_and_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: BaseException, code: int, said: str
) -> None:
    def fail(*_args: object) -> int:
        raise raised

    monkeypatch.setattr(commands, "run_module", fail)
    assert cli.main(["train"]) == code
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
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
            ended: object = cli.main(["tune"])
        except SystemExit as error:
            ended = error.code
        assert (ended, cleaned) == (code, [True])
        assert getattr(signal.getsignal(number), "__name__", "") == "<lambda>", "as it was before"
    finally:
        signal.signal(number, before)


def test_a_command_under_nohup_survives_a_hangup(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        monkeypatch.setattr(commands, "run_module", lambda *_args: os.kill(os.getpid(), signal.SIGHUP) or 7)
        assert cli.main(["tune"]) == 7
    finally:
        signal.signal(signal.SIGHUP, before)


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
