"""What users read: each command line of a golden file, run here, says and returns what the file shows.

A command line may begin with environment variables. `cat FILE` shows a file that the tests have made. `make golden`
writes the files anew.
"""

import io
import os
import re
import shlex
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from tests.build.folders import save_run
from tests.helpers import ROOT
from zerobeast.cli.main import COMMANDS, TOOLS, main
from zerobeast.common.files import run_files
from zerobeast.version import __version__

GOLDEN = ROOT / "tests" / "golden"
FILES = sorted(GOLDEN.glob("*.txt"))
SPOILT = """\
learner: {batch_size: many, batch_sise: 3}
broker: 5
lerner: {threads: 1}
seed: true
net: {hidden_sizes: [64, 0]}
"""
ODD_SWEEP = """\
{name: a b, from: [base], seeds: some, settings: 3, total_steps: 5,
 vary: {net.hidden_size: {}, net.core_width: {lot: 3}, "learner.window, learner.batch_size": {uniform: [1, 3]}}}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with runs and files to name, and a screen of 100 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("PATH", "")  # neither Docker nor Slurm
    for name in [name for name in os.environ if name.startswith("BEAST_")]:
        monkeypatch.delenv(name)
    runs = tmp_path / "runs"
    save_run(runs, "done", {100: 1.0, 400: 20.0}, {200: 10.0, 400: 21.0})
    save_run(runs, "pong", {100: -21.0}, env="Pong-v5")
    save_run(runs, "begun")
    save_run(runs, "gift", env="runs/gift/evil.py:Free", net={"torso": "evil:Torso"})
    for name in ("done", "gift"):
        (runs / name / "checkpoint.pt").touch()
    for age_s, name in enumerate(("done", "gift", "begun", "pong")):
        for path in [*(runs / name).iterdir(), runs / name]:
            os.utime(path, (time.time() - 60 * age_s,) * 2)
    (tmp_path / "tries" / "lr").mkdir(parents=True)
    (tmp_path / "tries" / "lr" / run_files.SWEEP).touch()
    (tmp_path / "spoilt.yaml").write_text(SPOILT)
    (tmp_path / "odd.yaml").write_text(ODD_SWEEP)
    (tmp_path / "lent.yaml").write_text("algo: ppo\nppo: {lr: 1e-3}\nn_epochs: 4\npolicy_kwargs: {}\n")
    (tmp_path / "sweep.yaml").write_text(
        "settings: {env: CartPole-v1}\nvary: {algo: [ppo, inpala], learner.windw: [1]}\n"
    )
    (tmp_path / "hosts").write_text("one\ntwo many\n")
    return tmp_path


def test_every_command_has_a_golden_file() -> None:
    assert {file.stem for file in FILES} == {"beast", *COMMANDS, *TOOLS}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_command_says_what_its_golden_file_shows(file: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line for line in file.read_text().splitlines() if line.startswith("$ ")]
    shown = "\n".join(f"{line}\n{_outcome(line.removeprefix('$ '), place, monkeypatch)}" for line in lines)
    if "REGENERATE" in os.environ:
        file.write_text(shown)
    assert shown == file.read_text()


def _outcome(line: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a command line writes, and its exit code unless it is 0."""
    words = shlex.split(line)
    said = io.StringIO()
    with monkeypatch.context() as patch:
        while "=" in words[0]:
            patch.setenv(*words.pop(0).split("=", 1))
        if words[0] == "cat":
            return Path(words[1]).read_text()
        with redirect_stdout(said), redirect_stderr(said):
            try:
                code = main(words[1:])
            except SystemExit as ended:
                code = int(ended.code or 0)
        text = _normalised(said.getvalue(), place)
    return f"{text}[exit code {code}]\n" if code else text


def _normalised(text: str, place: Path) -> str:
    """The text without what depends on the machine and the day."""
    for ours, shown in ((sys.executable, "python"), (str(ROOT), "/zerobeast"), (__version__, "VERSION")):
        text = text.replace(ours, shown)
    text = text.replace(str(place), "/here")
    return re.sub(r"\d+:\d\d:\d\d", "H:MM:SS", text)
