"""Commands as pages show them and as users type them: what they say, import and leave."""

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ROOT, bring
from zerobeast import commands
from zerobeast.cli import main as cli
from zerobeast.cli.slurm import SlurmFlags
from zerobeast.cli.train import TrainFlags
from zerobeast.common.config import torchbeast
from zerobeast.common.config.hints import load_synonyms
from zerobeast.common.config.load import resolve_flags
from zerobeast.common.config.settings_table import SHORT_NAMES, TREE, settings_of
from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.settings import Section
from zerobeast.plan.resolution import RunFlags
from zerobeast.sweeping.spec import SweepSettings

PAGES = [*map(Path, ("README.md", "CONTRIBUTING.md", "tests/README.md")), *sorted(Path("docs").glob("*.md"))]
OWN: dict[str, type[Section]] = {"train": TrainFlags, "slurm": SlurmFlags, "sweep": SweepSettings}
CAPITALS = re.compile(r"\b[A-Z]+\b")
STAND_FOR = {"ALGO": "ppo", "INPUTS": "always"}
PREFIX = re.compile(r"(?:(?:[A-Z_]+=\S+|taskset -c \S+) )*(?:\.venv/bin/)?(?:beast|make) ")
NOT_SETTINGS = {"BEAST_CONFIG", "BEAST_TAG", "BEAST_KEYS"}


class Parsed(Exception):
    """A command has parsed its flags but the rest, which are settings of a run."""

    def __init__(self, rest: Sequence[str]) -> None:
        self.rest = rest


def shown(text: str) -> Iterator[str]:
    """The commands in code blocks, fenced or indented, and in the page's text."""
    text = text.replace("\\\n", " ")
    blocks = "".join(re.findall(r"^```(?:sh)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    indented = re.findall(r"^    (\S.*)$", text, re.MULTILINE)
    inline = re.findall(r"(?<!`)`([^`]+)`(?!`)", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    for line in (*blocks.splitlines(), *indented, *(" ".join(each.split()) for each in inline)):
        command = re.split(r"\s{3,}|; done| && ", re.sub(r"^for .*?; do ", "", line.strip()))[0]
        if PREFIX.match(command) and "<" not in command:
            yield command


COMMANDS = {page: [*dict.fromkeys(shown((ROOT / page).read_text()))] for page in PAGES}


def words(line: str) -> list[str]:
    """The words of a command, with values in place of what a page leaves to its reader."""
    found = shlex.split(line.replace("$seed", "1"), comments=True)
    left_out = {place for place, word in enumerate(found) if word == "..."}
    left_out |= {place - 1 for place in left_out if found[place - 1].startswith("--")}
    kept = [word for place, word in enumerate(found) if place not in left_out]
    return [STAND_FOR.get(word, "1") if CAPITALS.fullmatch(word) else some_file(word) for word in kept]


def some_file(word: str) -> str:
    """A file of the repository whose path is like this one with anything for words in capitals; or else the word."""
    like = CAPITALS.sub("*", word)
    return word if like == word or "/" not in word else str(next(iter(sorted(ROOT.glob(like))), word))


def check(line: str) -> None:
    """Raise if there is no such command, flag, setting, value or target."""
    found = words(line)
    at = next(place for place, word in enumerate(found) if Path(word).name in ("beast", "make"))
    variables = dict(word.split("=", 1) for word in found[:at] if word.startswith("BEAST_"))
    if variables:
        resolve_flags([], variables, partial=True)
    program, argv = Path(found[at]).name, found[at + 1 :]
    {"beast": check_beast, "make": check_make}[program](argv)


def check_beast(argv: list[str]) -> None:
    if set(argv) & {"--help", "-h", "--version"}:
        argv = [word for word in argv if word not in ("--help", "-h", "all")]
    name, *flags = argv
    if name in OWN:
        if name == "sweep" and (file := flags.pop(0) if flags else "").startswith("docs"):
            assert (ROOT / file).is_file(), file
        settings(torchbeast.translate_flags(flags, str) if name == "train" else flags, OWN[name])
        return
    assert name in cli.COMMANDS | cli.TOOLS, name
    if not flags:  # the page speaks of the command
        return
    try:
        assert cli.call_command(name, flags) == 0, "unknown"
    except Parsed as parsed:
        settings(parsed.rest)


def settings(flags: Sequence[str], own: type[Section] = Section) -> None:
    resolve_flags(flags, {}, own=own, partial=True)


def check_make(argv: list[str]) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for word in argv:
        assert "=" in word or word in targets, word
        if word.startswith("ARGS="):
            check_beast(["train", *shlex.split(word.removeprefix("ARGS="))])


@pytest.fixture(autouse=True)
def _only_parsed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Commands end once they have parsed; those of docs/examples are there as if they were installed."""
    known = argparse.ArgumentParser.parse_known_args

    def parse_known_args(parser: Any, argv: Any = None, namespace: Any = None) -> Any:
        raise Parsed(known(parser, argv, namespace)[1])

    def parse_args(parser: Any, argv: Any = None, namespace: Any = None) -> Any:
        if rest := known(parser, argv, namespace)[1]:
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        raise Parsed([])

    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", parse_known_args)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(ROOT / "docs" / "examples" / "awr")
    monkeypatch.syspath_prepend(tmp_path)
    with bring(tmp_path, "zerobeast.algorithms", {"awr-1": "awr = awr.config:SPEC"}):
        yield


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_command_of_a_page_can_be_typed(page: Path) -> None:
    stale = []
    for line in COMMANDS[page]:
        try:
            check(line)
        except (BeastError, AssertionError, SystemExit) as error:
            stale.append(f"{line}: {error}")
    assert stale == []


def test_every_variable_of_a_page_is_a_setting() -> None:
    known = {f"BEAST_{path.upper().replace('.', '__')}" for path in TREE} | NOT_SETTINGS
    found = {name for page in PAGES for name in re.findall(r"\bBEAST_[A-Z0-9_]*[A-Z0-9]\b", (ROOT / page).read_text())}
    assert found <= known, found - known


def test_a_stale_command_is_noticed_and_what_a_page_leaves_to_its_reader_is_filled_in() -> None:
    for line in ("beast train --learner.batch_size none", "BEAST_LEARNER__BATCH=8 beast watch"):
        with pytest.raises(ConfigError):
            check(line)
    text = "```\nfor seed in 1 2; do beast train --algo ALGO --seed $seed --env.kwargs ...; done\n```\n"
    [found] = shown(text)
    assert words(found) == ["beast", "train", "--algo", "ppo", "--seed", "1"]
    assert sum(map(len, COMMANDS.values())) > 150


@pytest.mark.parametrize(("redirection", "code"), [("| true", 141), (">&-", 0), ("2>&-", 0)])
def test_output_without_a_reader_causes_no_crash(redirection: str, code: int) -> None:
    beast = f"{sys.executable} -c 'import sys; from zerobeast.cli.main import main; sys.exit(main([\"--help\"]))'"
    script = f"set -o pipefail; (sleep 0.3; {beast}) {redirection}"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (code, b"")


def test_help_shows_the_values_that_given_flags_lead_to_despite_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--env=CartPole-v1", "--algo=ppo", "--learner.batch_size", "4"]
    assert cli.main(["train", *flags, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for one in ("--ppo.epochs 4 ", "[preset classic-ppo; default 10]", "--learner.batch_size 4 ", "[flag; default 32]"):
        assert one in text
    assert cli.main(["train", "--sede", "1", "--help"]) == 0
    assert ["--sede" in part for part in capsys.readouterr()] == [False, True]


def test_help_shows_the_algorithm_of_the_run_and_all_of_them_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    every = {"ppo", "dqn", "sac", "impala"}
    for words, sections in ((["--help"], {"ppo"}), (["-h", "all"], every), (["--help=all"], every)):
        assert cli.main(["train", *words, "--algo", "ppo", "--env", "CartPole-v1"]) == 0
        shown = set(re.findall(r"^  --(\w+)\.learning_rate ", capsys.readouterr().out, re.MULTILINE))
        assert shown & every == sections


def test_every_name_of_another_project_leads_to_a_setting_or_a_sentence() -> None:
    words = [*TREE, *(path.rpartition(".")[2] for path in TREE), *SHORT_NAMES, *settings_of(RunFlags)]
    assert not [name for name, ours in load_synonyms().items() if " " not in ours and ours not in words]
    assert not [name for name in load_synonyms() if name in words], "it would never be looked up"


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (BeastError("the disk is full"), 1, "the disk is full\n"),
        (ModuleNotFoundError(name="rich"), 2, "rich is not installed: pip install 'zerobeast[train]'\n"),
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
        monkeypatch.setattr(cli, "find_entry_points", lambda _group: {})
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
