"""How a run is settled, how a new one takes its folder, and what a start that fails leaves."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.build.errors import refuses
from tests.build.starts import make_run_folder, resolve_new_run
from zerobeast.cli.train import TrainFlags, main, run_train
from zerobeast.common.config.load import load_config
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.wire import ArraySpace, EnvSpec
from zerobeast.launcher import start
from zerobeast.launcher.fleet import Fleet
from zerobeast.launcher.supervisor import Ending
from zerobeast.plan import preparation
from zerobeast.plan.preparation import secure
from zerobeast.plan.resolution import ResolvedRun, describe_values

POLE = ("--env", "CartPole-v1")


def test_a_known_name_continues_with_its_saved_settings_under_new_flags(tmp_path: Path) -> None:
    before = make_run_folder(tmp_path, "x", *POLE, "--learner.batch_size", "8", "--seed", "7")
    config, _, saved, *_ = resolve_new_run(tmp_path, "--name", "x", "--seed", "8", environ={"BEAST_SEED": "9"})
    assert (config.env.id, config.learner.batch_size, config.seed) == ("CartPole-v1", 8, 8)
    assert saved == before


def test_new_flags_have_to_fit_the_saved_settings_and_not_the_defaults(tmp_path: Path) -> None:
    memory = "tests.build.parts:newest"
    make_run_folder(tmp_path, "x", *POLE, "--net.core", "lstm", "--net.memory", memory)
    flags = ("--name", "x", "--net.memory", memory)
    config, _, saved, *_ = resolve_new_run(tmp_path, *flags, "--memory.decay", "0.5")
    assert saved is not None
    assert (config.net, config.memory.decay) == (saved.net, 0.5)
    with refuses("net.core", value="none", beside=("net.memory",)):
        resolve_new_run(tmp_path, *flags, "--net.core", "none")


@pytest.mark.parametrize(
    ("flags", "several", "keys"),
    [
        (["--local.placement", "serve"], False, True),
        (["--local.placement", "serve", "--insecure"], False, False),
        (["--local.placement", "serve", "--insecure"], True, True),
    ],
)
def test_a_run_that_others_connect_to_has_keys_unless_it_is_to_be_open(
    tmp_path: Path, flags: list[str], several: bool, keys: bool
) -> None:
    config = secure(make_run_folder(tmp_path, "x", *flags), several=several)
    assert config.security.keys == (str(tmp_path / "x" / "keys") if keys else "")
    assert (tmp_path / "x" / "keys" / "secret" / "actor.key_secret").exists() == keys
    assert secure(config, several=several) == config


def test_keys_that_came_with_a_folder_are_not_those_of_the_run(tmp_path: Path) -> None:
    config = make_run_folder(tmp_path, "x", "--local.placement", "serve")
    (config.folder / "keys").mkdir()
    with refuses("security.keys", value=str(config.folder.absolute() / "keys")):
        secure(config, several=False)


@pytest.mark.parametrize("by", ["flag", "variable", "file"])
def test_a_name_that_no_run_has_needs_an_environment(tmp_path: Path, by: str) -> None:
    make_run_folder(tmp_path, "minatar-3", "--env", "MinAtar/Breakout-v1")
    (file := tmp_path / "file.yaml").write_text("name: minatar3")
    flags = {"flag": ["--name", "minatar3"], "file": ["--config", str(file)], "variable": []}[by]
    environ = {"BEAST_NAME": "minatar3"} if by == "variable" else {}
    for more in ([], ["--fresh"], ["--local.placement", "serve"]):
        with refuses("name", value="minatar3", beside=("env.id",)):
            resolve_new_run(tmp_path, *flags, *more, environ=environ)
    assert resolve_new_run(tmp_path, *flags, *POLE, environ=environ).config.name == "minatar3"
    assert resolve_new_run(tmp_path, "--name", "minatar-3").config.env.id == "MinAtar/Breakout-v1"
    assert resolve_new_run(tmp_path, "--total_steps", "100000").config.env.id == RunConfig().env.id


def test_a_moved_folder_continues_where_it_is_now(tmp_path: Path) -> None:
    make_run_folder(tmp_path / "old", "x", *POLE)
    (tmp_path / "old" / "x").rename(tmp_path / "y")
    assert resolve_new_run(tmp_path, "--name", "y").config.folder == tmp_path / "y"


@pytest.mark.parametrize(
    "flag",
    [
        "--broker.endpoint tcp://host:1",
        "--learner.when_done stay",
        "--local.workers 3 --local.placement serial",
        "--local.env_servers 2 --local.actors 2 --local.placement fused",
    ],
)
def test_a_setting_without_effect_is_reported(flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resolve_new_run(tmp_path, *flag.split())
    assert flag.split()[0] in capsys.readouterr().out
    resolve_new_run(tmp_path, *flag.split()[2:])
    assert flag.split()[0] not in capsys.readouterr().out


def test_a_dry_run_prints_a_file_of_the_settings_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("zerobeast.cli.train.fetch_run_spec", lambda _: None)
    flags = ["--root", str(tmp_path / "runs"), *POLE, "--algo", "ppo", "--seed", "3"]
    assert main([*flags, "--dry_run", "--env.frame_stack", "8"]) == 0
    said = capsys.readouterr()
    assert "frame_stack has no effect" in said.err
    (tmp_path / "own.yaml").write_text(said.out)
    config = load_config(["--config", str(tmp_path / "own.yaml"), "--root", str(tmp_path / "runs")], {})
    assert (config.seed, config.section, "frame_stack" in said.out) == (3, "ppo", False)
    assert not (tmp_path / "runs").exists()


def test_a_preset_changes_no_continued_run_and_that_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = make_run_folder(tmp_path, "x", *POLE)
    assert resolve_new_run(tmp_path, "--name", "x", "--preset=torchbeast").config == saved
    assert "torchbeast" in capsys.readouterr().out


def test_the_first_lines_show_which_values_are_used_and_where_they_come_from(tmp_path: Path) -> None:
    run = resolve_new_run(tmp_path, *POLE, "--learner.batch_size=4", "--ppo.epochs=3", environ={"BEAST_SEED": "9"})
    preset, seed, given, rest = describe_values(run.config, run.origins)
    assert preset.startswith("preset cartpole-impala: total_steps 1000000, ")
    assert "learner.unroll_length 16" in preset
    assert "learner.batch_size" not in preset
    assert (seed, given) == ("environment: seed 9", "flag: learner.batch_size 4")
    assert rest.startswith("preset cartpole-impala was chosen for CartPole-v1 and impala; ")


def test_starting_over_reads_nothing_of_the_old_run_and_going_on_all(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path, "x", *POLE, "--seed", "7").folder
    config, _, saved, *_ = resolve_new_run(tmp_path, "--name", "x", "--fresh")
    assert (config.env.id, config.seed, saved) == (RunConfig().env.id, RunConfig().seed, None)
    (folder / "config.yaml").write_text("learner: {batch_size: many}")
    with refuses("learner.batch_size", value="many"):
        resolve_new_run(tmp_path, "--name", "x")


def test_a_missing_device_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("zerobeast.plan.resolution.GPUS", [tmp_path / "gpus"])
    flags = (*POLE, "--broker.device", "cuda:1")
    with refuses("broker.device", value="cuda:1"):
        resolve_new_run(tmp_path, *flags)
    (tmp_path / "gpus").mkdir()
    assert resolve_new_run(tmp_path, *flags).config.broker.device == "cuda:1"
    with refuses("actor.env_groups", value=1):
        resolve_new_run(tmp_path, *POLE, "--learner.ranks=2", "--local.actors=1", "--actor.env_groups=1")


SPEC = EnvSpec("CartPole-v1", ArraySpace.box((4,)), ArraySpace.discrete(2))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(preparation, "fetch_run_spec", lambda _: SPEC)
    monkeypatch.setattr(preparation, "pad_config", lambda config: config)
    monkeypatch.setattr(preparation, "check_once", lambda _: [])
    return tmp_path


def begun(run: ResolvedRun[TrainFlags], *codes: int | None) -> RunConfig:
    """Begin a run whose services end with these exit codes."""
    with start.prepare_fleet(run, {}, say=lambda _: None) as fleet:
        children: list[Any] = fleet.children
        children += [SimpleNamespace(code=code) for code in codes]
        return fleet.config


def test_runs_that_are_settled_in_the_same_second_get_folders_of_their_own(root: Path) -> None:
    runs = [resolve_new_run(root, *POLE, "--seed", str(seed)) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        names = [config.name for config in pool.map(begun, runs)]
    assert len(set(names)) == 4
    for name, run in zip(names, runs, strict=True):
        assert f"seed: {run.config.seed}\n" in (root / name / "config.yaml").read_text()


def test_a_new_run_that_cannot_be_started_leaves_nothing_and_one_that_crashed_its_logs(root: Path) -> None:
    with pytest.raises(KeyboardInterrupt), start.prepare_fleet(resolve_new_run(root, *POLE), {}, say=lambda _: None):
        raise KeyboardInterrupt
    assert not list(root.iterdir())
    begun(resolve_new_run(root, *POLE, "--name", "before"))
    begun(resolve_new_run(root, *POLE, "--name", "refused"), 0, 2, None)  # by a service
    assert {path.name for path in root.iterdir()} == {"before", "latest"}
    assert (root / "latest").read_text() == "before\n"
    for codes in ((1,), (0, -15), (None,)):
        assert (begun(resolve_new_run(root, *POLE), *codes).folder / "logs").is_dir()


def test_a_start_that_fails_leaves_what_was_there(root: Path) -> None:
    begun(resolve_new_run(root, *POLE, "--name", "x"))
    (root / "x" / "services" / "worker-9.json").touch()
    begun(resolve_new_run(root, *POLE, "--name", "x"), 2)
    assert not (root / "x" / "services" / "worker-9.json").exists(), "a service of an earlier start"
    assert (root / "x" / "config.yaml").exists(), "it was there before"
    (root / "mine").mkdir()
    (root / "mine" / "thesis.tex").touch()
    with refuses(str(root / "mine")):
        begun(resolve_new_run(root, *POLE, "--name", "mine"))
    assert (root / "mine" / "thesis.tex").exists()
    trained = resolve_new_run(root, *POLE, "--name", "trained")
    with start.prepare_fleet(trained, {}, say=lambda _: None) as fleet:
        (fleet.config.folder / "checkpoint.pt").touch()
        children: list[Any] = fleet.children
        children.append(SimpleNamespace(code=2))
    assert trained.config.folder.exists()


def test_a_run_that_is_refused_when_it_continues_does_not_advise_to_continue_it(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = begun(resolve_new_run(root, *POLE, "--name", "x", "--local.placement", "fused")).folder
    (folder / "checkpoint.pt").touch()
    (folder / "metrics.csv").write_text("agent_steps\n500\n")
    endings = [Ending(2, "checkpoint.pt is damaged"), Ending(130)]
    monkeypatch.setattr(Fleet, "add_all", lambda _: [])
    monkeypatch.setattr(Fleet, "supervisor", lambda *_: SimpleNamespace(run=lambda: endings.pop(0)))
    for code, advised in ((2, False), (130, True)):
        assert run_train(["--root", str(root), "--name", "x"], {}) == code
        said = capsys.readouterr()
        assert ("beast train: checkpoint.pt is damaged" in said.err) != advised
        assert ("continue:" in said.out) == ("evaluate:" in said.out) == advised
