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
from zerobeast.common.config.load import gather
from zerobeast.common.config.table import SHORT, TREE, settings_of
from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.launcher.start import RunFlags

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("argv", [[], ["-h"], ["--help"], ["help"]])
def test_beast_alone_lists_its_commands(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 0
    text = capsys.readouterr().out
    for command in cli.COMMANDS:
        assert f"beast {command}" in text
    assert max(map(len, text.splitlines())) <= 110


@pytest.mark.parametrize(("redirection", "code"), [("| true", 141), (">&-", 0), ("2>&-", 0)])
def test_output_without_a_reader_causes_no_crash(redirection: str, code: int) -> None:
    beast = f"{sys.executable} -c 'import sys; from zerobeast.cli.main import main; sys.exit(main([\"--help\"]))'"
    script = f"set -o pipefail; (sleep 0.3; {beast}) {redirection}"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (code, b"")


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_the_version_is_one_line(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([flag]) == 0
    assert capsys.readouterr().out.startswith("beast ")


@pytest.mark.parametrize(("command", "word"), [("train", "--fresh"), ("evaluate", "--episodes"), ("bench", "limit")])
def test_every_command_explains_itself(command: str, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = cli.main([command, "--help"])
    except SystemExit as end:
        code = end.code
    assert (code, word in capsys.readouterr().out) == (0, True)


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


@pytest.mark.parametrize(
    ("flags", "hint"),
    [
        (["--lr", "1"], "ppo.learning_rate"),
        (["--gamma=0.9"], "ppo.discount"),
        (["--clip-coef", "1"], "ppo.clip"),
        (["--num_envs", "8"], "actor.envs_per_group"),
        (["--max_grad_norm", "8"], "ppo.max_grad_norm"),
        (["--batch-sice", "8"], "batch_size"),
        (["--dqn.learning_rat", "1"], "dqn.learning_rate"),
        (["--buffer-size", "8", "--algo", "dqn"], "dqn.replay_size"),
        (["--ppo.lr", "1"], "ppo.learning_rate"),
        (["--sac.lr", "1"], "sac.learning_rate"),
        (["--learner.gamma", "1"], "ppo.discount"),
        (["--ppo.n_steps", "1"], "learner.unroll_length"),
        (["--train_freq", "1", "--algo", "sac"], "sac.samples_per_insert"),
        (["--gradient_steps", "1", "--algo", "sac"], "sac.samples_per_insert"),
        (["--ppo.sample_per_insert", "1"], ""),
        (["--learner.batch_sise", "1"], "learner.batch_size"),
        (["--ppo.batch_sise", "1"], "learner.batch_size"),
        (["--env_id", "1"], "env"),
        (["--wandb-project-name", "x"], "track_project"),
    ],
)
def test_names_of_other_projects_suggest_settings_of_the_algorithm_of_the_run(flags: list[str], hint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        gather(["--algo", "ppo", "--env", "CartPole-v1", *flags], {}, own=RunFlags)
    assert str(refused.value).partition("unknown setting")[2] == (f"; did you mean {hint}?" if hint else "")


def test_what_only_other_algorithms_have_is_named_as_theirs() -> None:
    with pytest.raises(
        ConfigError, match=r"--train_freq: .*; samples_per_insert is of other algorithms: .*\bdqn\.samples"
    ):
        gather(["--algo", "ppo", "--train_freq", "4"], {})


@pytest.mark.parametrize("layer", ["flag", "variable", "file"])
def test_every_layer_suggests_by_the_names_of_other_projects(layer: str, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("algo: ppo\nppo: {lr: 1e-3}\nn_epochs: 4\npolicy_kwargs: {}\n")
    names = {"ppo.lr": "1e-3", "n_epochs": "4", "policy_kwargs": "{}"}
    flags = {"flag": [f"--{name}={text}" for name, text in names.items()], "file": ["--config", f"{tmp_path}/own.yaml"]}
    variables = {f"BEAST_{name.upper().replace('.', '__')}": text for name, text in {**names, "algo": "ppo"}.items()}
    with pytest.raises(ConfigError) as refused:
        gather(["--algo", "ppo", *flags.get(layer, [])], variables if layer == "variable" else {})
    for hint in ("did you mean ppo.learning_rate?", "did you mean ppo.epochs?", "no counterpart: the network"):
        assert f"unknown setting; {hint}" in str(refused.value).replace("has no", "no")


def test_every_name_of_another_project_leads_to_a_setting_or_a_sentence() -> None:
    words = [*TREE, *(path.rpartition(".")[2] for path in TREE), *SHORT, *settings_of(RunFlags)]
    assert not [name for name, ours in elsewhere().items() if " " not in ours and ours not in words]
    assert not [name for name in elsewhere() if name in words], "it would never be looked up"


def test_help_is_shown_despite_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--sede", "1", "--help"]) == 0
    said = capsys.readouterr()
    assert "flag --sede: unknown setting; did you mean seed?" in said.err
    assert "--seed 1 " in said.out


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("trian", "unknown command 'trian'; did you mean train?"),
        ("xyz", f"unknown command 'xyz'; known: {', '.join(cli.COMMANDS)}"),
        ("--trian", "unknown option '--trian'"),
    ],
)
def test_an_unknown_command_is_answered_with_the_nearest(
    word: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([word]) == 2
    assert hint in capsys.readouterr().err


def test_a_mistake_in_the_settings_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--root", str(tmp_path), "--learner.batch_sise", "3"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("beast train: flag --learner.batch_sise: unknown setting; did you mean")
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir()), "nothing was made"


def test_several_mistakes_are_a_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--root", str(tmp_path), "--seed", "-1", "--total_steps", "many"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "beast train:"
    assert [line.split(":")[0] for line in lines[1:]] == ["  flag --seed", "  flag --total_steps"]


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


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_command_that_is_asked_to_end_cleans_up(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    cleaned = []

    def command(*_args: object) -> int:
        try:
            os.kill(os.getpid(), number)
            time.sleep(10.0)
        finally:
            cleaned.append(True)
        return 0

    before = signal.signal(number, lambda *_: pytest.fail("the command has its own handler"))
    try:
        monkeypatch.setattr(commands, "run_module", command)
        with pytest.raises(SystemExit) as ended:
            cli.main(["tune"])
        assert (ended.value.code, cleaned) == (code, [True])
        assert getattr(signal.getsignal(number), "__name__", "") == "<lambda>", "as it was before"
    finally:
        signal.signal(number, before)


def test_a_second_signal_at_once_does_not_interrupt_the_cleaning_up(monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned = []

    def command(*_args: object) -> int:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10.0)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            cleaned.append(True)
        return 0

    monkeypatch.setattr(commands, "run_module", command)
    assert cli.main(["evaluate"]) == 130
    assert cleaned == [True]


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
