"""The `beast` command: help, mistakes, what it imports, and what a run is settled to be."""

import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from zerobeast.cli import main as cli
from zerobeast.cli.train import beast, evaluation_of, main, settle, values
from zerobeast.common.config.load import dump, load
from zerobeast.common.config.tree import RunConfig
from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.launcher import fleet
from zerobeast.launcher.supervisor import Stage

pytestmark = pytest.mark.unit

NOW = datetime(2026, 1, 31, 23, 59, 58, tzinfo=UTC)
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("argv", [[], ["-h"], ["--help"], ["help"]])
def test_beast_alone_lists_its_commands(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 0
    text = capsys.readouterr().out
    for command in cli.COMMANDS:
        assert f"beast {command}" in text
    assert max(map(len, text.splitlines())) <= 110


@pytest.mark.parametrize(("redirection", "code"), [("| true", 141), (">&-", 0), ("2>&-", 0)])
def test_output_that_nobody_reads_is_no_crash(redirection: str, code: int) -> None:
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
    assert cli.main([command, "--help"]) == 0
    assert word in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "entries"),
    [
        ([], ["--preset atari ", "[chosen for PongNoFrameskip-v4 and impala; default ]"]),
        (["--env", "CartPole-v1"], ["--preset classic ", "--learner.batch_size 8 ", "[preset classic; default 32]"]),
        (["--env=CartPole-v1", "--algo=ppo"], ["--ppo.epochs 4 ", "[preset classic-ppo; default 10]"]),
        (["--learner.batch_size", "4"], ["--learner.batch_size 4 ", "[flag; default 32]"]),
    ],
)
def test_the_help_of_a_command_line_has_the_values_that_it_leads_to(
    capsys: pytest.CaptureFixture[str], flags: list[str], entries: list[str]
) -> None:
    assert cli.main(["train", *flags, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert all(entry in text for entry in entries)


def test_a_mistake_keeps_nobody_from_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--sede", "1", "--help"]) == 0
    said = capsys.readouterr()
    assert "flag --sede: unknown setting; did you mean seed?" in said.err
    assert "--seed 1 " in said.out


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("trian", "unknown command 'trian'; did you mean train?"),
        ("xyz", "unknown command 'xyz'; known: train, evaluate, health, keygen, tune, bench, chaos"),
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


def test_a_failure_meant_for_the_user_is_a_sentence_and_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_argv: list[str]) -> int:
        raise BeastError("the disk is full")

    monkeypatch.setitem(cli.COMMANDS, "train", fail)
    assert cli.main(["train"]) == 1
    assert capsys.readouterr().err == "beast train: the disk is full\n"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_argv: list[str]) -> int:
        raise ModuleNotFoundError("No module named 'rich'", name="rich")

    monkeypatch.setitem(cli.COMMANDS, "train", fail)
    assert cli.main(["train"]) == 2
    assert capsys.readouterr().err == "beast train: rich is not installed: pip install 'zerobeast[cli]'\n"


def test_an_interrupt_outside_training_is_130_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_argv: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "bench", interrupted)
    assert cli.main(["bench"]) == 130
    assert not capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_command_that_is_told_to_end_cleans_up(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    cleaned = []

    def command(_argv: list[str]) -> int:
        try:
            os.kill(os.getpid(), number)
            time.sleep(10.0)
        finally:
            cleaned.append(True)
        return 0

    before = signal.signal(number, lambda *_: pytest.fail("the command has its own handler"))
    try:
        monkeypatch.setitem(cli.COMMANDS, "tune", command)
        with pytest.raises(SystemExit) as ended:
            cli.main(["tune"])
        assert (ended.value.code, cleaned) == (code, [True])
        assert getattr(signal.getsignal(number), "__name__", "") == "<lambda>", "as it was before"
    finally:
        signal.signal(number, before)


def test_a_command_under_nohup_survives_a_hangup(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        monkeypatch.setitem(cli.COMMANDS, "tune", lambda _argv: os.kill(os.getpid(), signal.SIGHUP) or 7)
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


# --- what a run is settled to be -------------------------------------------------------------------------------------


def save(root: Path, name: str, *flags: str) -> RunConfig:
    config = load(["--root", str(root), "--name", name, *flags], {})
    config.folder.mkdir(parents=True)
    (config.folder / "config.yaml").write_text(dump(config))
    return config


def test_a_run_without_a_name_gets_one(tmp_path: Path) -> None:
    config, flags, saved, origins = settle(["--root", str(tmp_path), "--env", "CartPole-v1", "--plain"], {}, NOW)
    assert config.name == "CartPole-v1-impala-20260131-235958"
    assert (flags.plain, flags.fresh, saved) == (True, False, None)
    assert (config.preset, origins["preset"]) == ("classic", "chosen for CartPole-v1 and impala")


def test_a_known_name_continues_with_its_saved_settings_under_new_flags(tmp_path: Path) -> None:
    save(tmp_path, "x", "--env", "CartPole-v1", "--learner.batch_size", "8", "--seed", "7")
    config, _, saved, _ = settle(["--root", str(tmp_path), "--name", "x", "--seed", "8"], {"BEAST_SEED": "9"}, NOW)
    assert (config.env.id, config.learner.batch_size, config.seed) == ("CartPole-v1", 8, 8)
    assert saved.seed == 7


def test_a_moved_folder_continues_where_it_is_now(tmp_path: Path) -> None:
    save(tmp_path / "old", "x", "--env", "CartPole-v1")
    (tmp_path / "old").rename(tmp_path / "new")
    (tmp_path / "new" / "x").rename(tmp_path / "new" / "y")
    config = settle(["--root", str(tmp_path / "new"), "--name", "y"], {}, NOW).config
    assert config.folder == tmp_path / "new" / "y"


def test_an_endpoint_that_has_no_effect_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settle(["--root", str(tmp_path), "--broker.endpoint", "tcp://host:1"], {}, NOW)
    assert capsys.readouterr().out.startswith("flag --broker.endpoint has no effect: ")


def test_a_preset_changes_nothing_of_a_run_that_continues_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = save(tmp_path, "x", "--env", "CartPole-v1")
    assert settle(["--root", str(tmp_path), "--name", "x", "--preset=torchbeast"], {}, NOW).config == saved
    assert capsys.readouterr().out.startswith("preset torchbeast has no effect: ")


def test_the_first_lines_say_which_values_are_used_and_where_they_come_from(tmp_path: Path) -> None:
    flags = ["--root", str(tmp_path), "--env", "CartPole-v1", "--learner.batch_size", "4", "--ppo.epochs", "3"]
    settled = settle(flags, {"BEAST_SEED": "9"}, NOW)
    preset, seed, given, rest = values(settled.config, settled.origins)
    assert preset.startswith("preset classic: total_steps 500000, ")
    assert "learner.unroll_length 16" in preset
    assert "learner.batch_size" not in preset
    assert (seed, given) == ("environment: seed 9", "flag: learner.batch_size 4")
    assert rest.startswith(
        "preset classic was chosen for CartPole-v1 and impala; all other settings have their defaults"
    )


@pytest.mark.parametrize(
    ("flags", "evaluation"),
    [
        (["--mode", "test", "--xpid", "x", "--savedir=logs"], ["x", "--greedy", "--savedir=logs"]),
        (["--disable_cuda", "--mode=test"], ["latest", "--greedy", "--disable_cuda"]),
    ],
)
def test_torchbeasts_test_mode_evaluates_the_run_or_the_newest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: list[str], evaluation: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # a clone that has trained has a newest run
    assert evaluation_of(flags) == evaluation
    assert evaluation_of(["--mode", "train", "--xpid", "x"]) is None
    with pytest.raises(ConfigError, match=r"there is no run '(x|latest)': expected (logs|runs)/"):
        main(flags)


@pytest.mark.parametrize(
    ("found", "called", "said"),
    [
        (None, ".venv/bin/beast", ".venv/bin/beast"),
        ("/usr/bin/beast", ".venv/bin/beast", "beast"),
        (None, "zerobeast/cli/main.py", "beast"),
    ],
)
def test_a_hint_can_be_typed_as_it_stands(
    monkeypatch: pytest.MonkeyPatch, found: str | None, called: str, said: str
) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: found)
    monkeypatch.setattr("sys.argv", [called, "train"])
    assert beast() == said


def test_starting_over_reads_nothing_of_the_old_run(tmp_path: Path) -> None:
    save(tmp_path, "x", "--env", "CartPole-v1", "--seed", "7")
    config, _, saved, _ = settle(["--root", str(tmp_path), "--name", "x", "--fresh"], {}, NOW)
    assert (config.env.id, config.seed, saved) == (RunConfig().env.id, RunConfig().seed, None)


def test_a_damaged_saved_file_is_named(tmp_path: Path) -> None:
    config = save(tmp_path, "x")
    (config.folder / "config.yaml").write_text("learner: {batch_size: many}")
    with pytest.raises(ConfigError, match=r"file .*config.yaml: learner.batch_size: got 'many'"):
        settle(["--root", str(tmp_path), "--name", "x"], {}, NOW)


# --- which processes a run consists of -------------------------------------------------------------------------------


def value_of(command: list[str], flag: str) -> str:
    return command[command.index(flag) + 1]


def staged(config: RunConfig) -> list[Stage]:
    services = fleet.Fleet(config, Path("/tmp/s"), {}, keep_open=(9,))
    services.add_all()
    return services.stages()


def test_children_are_staged_actors_first_and_the_learner_last() -> None:
    config = load(["--name", "x", "--local.actors", "3", "--local.env_servers", "2"], {})
    stages = staged(config)
    names = [[child.spec.name for child in stage.children] for stage in stages]
    assert names == [["actor 0", "actor 1", "actor 2"], ["envserver 0", "envserver 1"], ["broker 0"], ["learner 0"]]


def test_actors_are_spread_over_the_env_servers_and_all_else_is_shared() -> None:
    config = load(["--name", "x", "--local.actors", "3", "--local.env_servers", "2"], {})
    actors, servers, brokers, learners = staged(config)
    endpoints = [
        [value_of(list(child.spec.command), "--envserver.endpoint") for child in stage.children]
        for stage in (actors, servers)
    ]
    assert endpoints == [
        ["ipc:///tmp/s/e0", "ipc:///tmp/s/e1", "ipc:///tmp/s/e0"],
        ["ipc:///tmp/s/e0", "ipc:///tmp/s/e1"],
    ]
    shared = {
        value_of(list(child.spec.command), "--learner.endpoint")
        for stage in (actors, brokers, learners)
        for child in stage.children
    }
    assert shared == {"ipc:///tmp/s/l"}


def test_children_of_a_run_that_continues_are_told_after_how_many_steps(tmp_path: Path) -> None:
    config = load(["--name", "x", "--root", str(tmp_path)], {})

    def starts() -> set[str]:
        children = [child for stage in staged(config) for child in stage.children]
        return {value_of(list(child.spec.command), "--start") for child in children}

    config.folder.mkdir()
    metrics = config.folder / "metrics.csv"
    metrics.write_text("agent_steps,mean_return_100\n160,\n5000,1.5\n")
    assert starts() == {"0"}, "without a checkpoint it begins again"
    (config.folder / "checkpoint.pt").touch()
    assert starts() == {"5000"}
    metrics.unlink()
    assert starts() == {"1"}, "where nobody knows how many"


def test_a_given_health_port_is_the_learners_and_the_others_follow() -> None:
    config = load(["--name", "x", "--health.port", "9000"], {})
    ports = {
        child.spec.name: value_of(list(child.spec.command), "--health.port")
        for stage in staged(config)
        for child in stage.children
    }
    assert ports == {"learner 0": "9000", "broker 0": "9001", "envserver 0": "9002", "actor 0": "9003"}


def test_the_learner_of_a_run_that_was_begun_in_a_cluster_exits_when_it_is_done() -> None:
    config = load(["--name", "x", "--learner.when_done", "stay"], {})
    learner = fleet.Fleet(config, Path("/tmp/s"), {}).add("learner")
    assert value_of(list(learner.spec.command), "--learner.when_done") == "exit"


def test_settings_of_the_launchers_environment_do_not_reach_children_twice() -> None:
    environ = fleet.child_environ({"BEAST_SEED": "9", "PATH": "/bin", "PYTHONPATH": "/mine"})
    assert "BEAST_SEED" not in environ
    assert environ["PATH"] == "/bin"
    assert environ["PYTHONPATH"] == f"/mine:{Path.cwd()}"


def test_more_environments_than_groups_are_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--env", "CartPole-v0,CartPole-v1,Acrobot-v1"]
    with pytest.raises(ConfigError, match=r"^actor.env_groups 2 of local.actors 1 are 2 groups, expected at least 3: "):
        settle(flags, {}, NOW)
    for more in (["--local.actors", "2"], ["--actor.env_groups", "3"]):
        assert settle([*flags, *more], {}, NOW).config.env.tasks[-1] == "Acrobot-v1"
