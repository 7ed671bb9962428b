"""How a run is settled before it starts: its name, what it continues, and what the user is told."""

import io
from datetime import UTC, datetime
from pathlib import Path

import pytest

from zerobeast.cli.train import TrainFlags, beast, evaluation_of, main
from zerobeast.common.config.load import dump, load
from zerobeast.common.errors import ConfigError
from zerobeast.common.process.terminal import say
from zerobeast.common.settings.tree import RunConfig
from zerobeast.launcher.hosts import Host
from zerobeast.launcher.start import protected, settle, values

NOW = datetime(2026, 1, 31, 23, 59, 58, tzinfo=UTC)


def save(root: Path, name: str, *flags: str) -> RunConfig:
    config = load(["--root", str(root), "--name", name, *flags], {})
    config.folder.mkdir(parents=True)
    (config.folder / "config.yaml").write_text(dump(config))
    return config


def test_a_run_without_a_name_gets_one(tmp_path: Path) -> None:
    config, flags, saved, origins, _ = settle(
        ["--root", str(tmp_path), "--env", "CartPole-v1", "--plain"], {}, NOW, own=TrainFlags
    )
    assert config.name == "CartPole-v1-impala-20260131-235958"
    assert (flags.plain, flags.fresh, saved) == (True, False, None)
    assert (config.preset, origins["preset"]) == ("cartpole-impala", "chosen for CartPole-v1 and impala")


def test_a_known_name_continues_with_its_saved_settings_under_new_flags(tmp_path: Path) -> None:
    save(tmp_path, "x", "--env", "CartPole-v1", "--learner.batch_size", "8", "--seed", "7")
    config, _, saved, *_ = settle(
        ["--root", str(tmp_path), "--name", "x", "--seed", "8"], {"BEAST_SEED": "9"}, NOW, own=TrainFlags
    )
    assert (config.env.id, config.learner.batch_size, config.seed) == ("CartPole-v1", 8, 8)
    assert saved.seed == 7


@pytest.mark.parametrize("memory", ["knn", "tests.build.parts:newest"])
def test_new_flags_have_to_fit_the_saved_settings_and_not_the_defaults(tmp_path: Path, memory: str) -> None:
    save(tmp_path, "x", "--env", "CartPole-v1", "--net.use_lstm", "true", "--net.memory", memory)
    flags = ["--root", str(tmp_path), "--name", "x", "--net.memory", memory]
    config, _, saved, *_ = settle([*flags, "--memory.decay", "0.5"], {}, NOW, own=TrainFlags)
    assert (config.net, config.memory.decay) == (saved.net, 0.5)
    with pytest.raises(ConfigError, match=r"net\.use_lstm false with net\.memory"):
        settle([*flags, "--net.use_lstm", "false"], {}, NOW, own=TrainFlags)


def test_a_run_of_an_algorithm_given_by_reference_continues_with_any_reference_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zerobeast.common.settings.algorithm._found", {})
    script = tmp_path / "moved.py"
    script.write_text("from tests.unit.test_algorithms import MINE as SPEC")
    save(tmp_path, "x", "--algo", "tests.unit.test_algorithms:MINE", "--env", "CartPole-v1")
    flags = ["--root", str(tmp_path), "--name", "x", "--algo", f"{script}:SPEC", "--mine.entropy_until", "9"]
    config, _, saved, *_ = settle(flags, {}, NOW, own=TrainFlags)
    assert (config.algo, saved.section) == (f"{script}:SPEC", "mine")
    assert (config.algorithm.entropy_until, saved.algorithm.entropy_until) == (9, 1000)
    with pytest.raises(ConfigError, match=r"^algo: run 'x' was trained with 'tests.*:MINE' and cannot .* with 'ppo';"):
        settle([*flags[:4], "--algo", "ppo"], {}, NOW, own=TrainFlags)


@pytest.mark.parametrize(
    ("flags", "hosts", "keys"),
    [
        (["--local.placement", "serve"], [], True),
        (["--local.placement", "serve", "--insecure"], [], False),
        (["--local.placement", "serve", "--insecure"], [Host("one", 1, "python")], True),
        (["--local.placement", "apart"], [], False),
    ],
)
def test_a_run_that_others_connect_to_has_keys_unless_it_is_to_be_open(
    tmp_path: Path, flags: list[str], hosts: list[Host], keys: bool
) -> None:
    config = protected(save(tmp_path, "x", *flags), hosts)
    assert config.security.keys == (str(tmp_path / "x" / "keys") if keys else "")
    assert (tmp_path / "x" / "keys" / "secret" / "actor.key_secret").exists() == keys
    assert protected(config, hosts) == config


def test_keys_that_came_with_a_folder_are_not_those_of_the_run(tmp_path: Path) -> None:
    config = save(tmp_path, "x", "--local.placement", "serve")
    (config.folder / "keys").mkdir()
    with pytest.raises(
        ConfigError, match=r"x/keys decides who may take part, .*: give --security.keys /.*/keys as well"
    ):
        protected(config, [])


@pytest.mark.parametrize("by", ["flag", "variable", "file"])
def test_a_name_that_no_run_has_needs_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "runs", "minatar-3", "--env", "MinAtar/Breakout-v1")
    (tmp_path / "file.yaml").write_text("name: minatar3")
    flags = {"flag": ["--xpid", "minatar3"], "file": ["--config", "file.yaml"], "variable": []}[by]
    environ = {"BEAST_NAME": "minatar3"} if by == "variable" else {}
    sentence = f"name 'minatar3': no such run in {tmp_path}/runs, and a new one needs --env; did you mean minatar-3?"
    for more in ([], ["--fresh"], ["--local.placement", "serve"]):
        with pytest.raises(ConfigError) as refused:
            settle([*flags, *more], environ, NOW, own=TrainFlags)
        assert str(refused.value) == sentence
    assert settle([*flags, "--env", "CartPole-v1"], environ, NOW, own=TrainFlags).config.name == "minatar3"
    assert settle(["--name", "minatar-3"], {}, NOW, own=TrainFlags).config.env.id == "MinAtar/Breakout-v1"
    assert settle(["--total_steps", "100000"], {}, NOW, own=TrainFlags).config.env.id == RunConfig().env.id


def test_a_moved_folder_continues_where_it_is_now(tmp_path: Path) -> None:
    save(tmp_path / "old", "x", "--env", "CartPole-v1")
    (tmp_path / "old").rename(tmp_path / "new")
    (tmp_path / "new" / "x").rename(tmp_path / "new" / "y")
    config = settle(["--root", str(tmp_path / "new"), "--name", "y"], {}, NOW, own=TrainFlags).config
    assert config.folder == tmp_path / "new" / "y"


@pytest.mark.parametrize(
    "flag",
    [
        "--broker.endpoint tcp://host:1",
        "--learner.when_done stay",
        "--local.workers 3 --local.placement apart",
        "--local.workers 3 --local.placement serial",
        "--local.actors 2 --local.placement serve",
        "--local.env_servers 2 --local.actors 2 --local.placement fused",
    ],
)
def test_a_setting_without_effect_is_reported(flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settle(["--root", str(tmp_path), *flag.split()], {}, NOW, own=TrainFlags)
    assert capsys.readouterr().out.startswith(f"flag {flag.split()[0]} has no effect: ")


def test_a_dry_run_prints_a_file_of_the_settings_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("zerobeast.cli.train.spec_for", lambda _: None)
    flags = ["--root", str(tmp_path / "runs"), "--env", "CartPole-v1", "--algo", "ppo", "--seed", "3"]
    assert main([*flags, "--dry_run", "--env.frame_stack", "8"]) == 0
    said = capsys.readouterr()
    assert "frame_stack has no effect" in said.err
    (tmp_path / "own.yaml").write_text(said.out)
    config = load(["--config", str(tmp_path / "own.yaml"), "--root", str(tmp_path / "runs")], {})
    assert (config.seed, config.section, config.env.frame_stack) == (3, "ppo", 8)
    assert not (tmp_path / "runs").exists()


def test_a_preset_changes_nothing_in_a_continued_run_and_that_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = save(tmp_path, "x", "--env", "CartPole-v1")
    assert (
        settle(["--root", str(tmp_path), "--name", "x", "--preset=torchbeast"], {}, NOW, own=TrainFlags).config == saved
    )
    assert capsys.readouterr().out.startswith("preset torchbeast has no effect: ")


def test_the_first_lines_show_which_values_are_used_and_where_they_come_from(tmp_path: Path) -> None:
    flags = ["--root", str(tmp_path), "--env", "CartPole-v1", "--learner.batch_size", "4", "--ppo.epochs", "3"]
    settled = settle(flags, {"BEAST_SEED": "9"}, NOW, own=TrainFlags)
    preset, seed, given, rest = values(settled.config, settled.origins)
    assert preset.startswith("preset cartpole-impala: total_steps 1000000, ")
    assert "learner.unroll_length 16" in preset
    assert "learner.batch_size" not in preset
    assert (seed, given) == ("environment: seed 9", "flag: learner.batch_size 4")
    assert rest.startswith(
        "preset cartpole-impala was chosen for CartPole-v1 and impala; all other settings have their defaults"
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
    config, _, saved, *_ = settle(["--root", str(tmp_path), "--name", "x", "--fresh"], {}, NOW, own=TrainFlags)
    assert (config.env.id, config.seed, saved) == (RunConfig().env.id, RunConfig().seed, None)


def test_a_damaged_saved_file_is_named(tmp_path: Path) -> None:
    config = save(tmp_path, "x")
    (config.folder / "config.yaml").write_text("learner: {batch_size: many}")
    with pytest.raises(ConfigError, match=r"file .*config.yaml: learner.batch_size: got 'many'"):
        settle(["--root", str(tmp_path), "--name", "x"], {}, NOW, own=TrainFlags)


def test_a_run_that_serves_makes_no_environment_and_asks_for_a_preset(tmp_path: Path) -> None:
    flags = ["--root", str(tmp_path), "--env", "Nowhere-v0,Nobody-v0", "--local.placement", "serve"]
    with pytest.raises(ConfigError, match=r"^preset: expected a name, because with local.placement serve nothing here"):
        settle(flags, {}, NOW, own=TrainFlags)
    settled = settle([*flags, "--preset", "classic"], {}, NOW, own=TrainFlags)
    assert settled.config.env.tasks == ("Nowhere-v0", "Nobody-v0")


def test_more_environments_than_groups_are_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--env", "CartPole-v0,CartPole-v1,Acrobot-v1"]
    with pytest.raises(ConfigError, match=r"^actor.env_groups 2: 2 env groups in all, expected at least 3: "):
        settle(flags, {}, NOW, own=TrainFlags)
    for more in (["--local.actors", "2"], ["--actor.env_groups", "3"]):
        assert settle([*flags, *more], {}, NOW, own=TrainFlags).config.env.tasks[-1] == "Acrobot-v1"


def test_a_device_that_the_machine_has_not_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("zerobeast.launcher.start.GPUS", [tmp_path / "gpus"])
    flags = ["--env", "CartPole-v1", "--broker.device", "cuda:1"]
    with pytest.raises(ConfigError, match=r"^broker.device cuda:1: this machine has no GPU; expected cpu, or auto$"):
        settle(flags, {}, NOW, own=TrainFlags)
    (tmp_path / "gpus").mkdir()
    assert settle(flags, {}, NOW, own=TrainFlags).config.broker.device == "cuda:1"


def test_what_a_terminal_cannot_encode_is_escaped_and_nothing_is_lost() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii", newline="")
    say("run é", file)
    assert file.buffer.getvalue() == b"run \\xe9\n"  # type: ignore[attr-defined]
