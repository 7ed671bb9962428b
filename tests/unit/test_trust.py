"""Files from strangers are data: the contents of a config or a run folder are read and never run."""

import importlib
import json
import pkgutil
import shlex
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors.torch import save_file

from tests.build.errors import refuses
from tests.build.starts import resolve_new_run
from tests.helpers import python, wait_for_end
from zerobeast import cli
from zerobeast.cli.evaluate import main as evaluate
from zerobeast.cli.train import TrainFlags
from zerobeast.common.config import confirmations, trust
from zerobeast.common.config.flags import flags_for
from zerobeast.common.config.load import load_config, resolve_flags
from zerobeast.common.config.process import Instance
from zerobeast.common.config.settings_table import LEVELS, TREE, section_of, value_at
from zerobeast.common.config.trust import SAFE_VALUES, confirmation, decisive_values
from zerobeast.common.files import state
from zerobeast.common.settings import AlgorithmSettings, AlgorithmSpec, RunConfig, Section, algorithm, setting
from zerobeast.common.settings.guards import takes_text
from zerobeast.common.wire import ArraySpace, EnvSpec
from zerobeast.launcher import start
from zerobeast_tools.bench.options import parse_options


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.mkdir [trap-sprung]",
        "name: !!python/name:os.mkdir",
        "env: {kwargs: {x: !!python/object/apply:os.mkdir [trap-sprung]}}",
    ],
)
def test_a_config_that_would_run_code_is_refused_without_running_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(text)
    with refuses("file run.yaml"):
        load_config(["--config", "run.yaml"], {})
    with refuses("env.kwargs"):
        resolve_flags([], {"BEAST_ENV__KWARGS": "!!python/object/apply:os.mkdir [trap-sprung]"})
    assert not (tmp_path / "trap-sprung").exists()


@pytest.fixture(params=["runs.gift.evil:Free-v0", "runs/gift/evil.py:Free"])
def foreign(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run folder that contains a module, importable from here, and names it as its environment."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "gift"
    run.mkdir(parents=True)
    (run / "evil.py").write_text("import os; os.mkdir('trap-sprung')")
    (run / "config.yaml").write_text(f"env: {{id: '{request.param}'}}")
    (run / "checkpoint.pt").touch()
    return str(request.param)


def test_no_file_decides_alone_which_module_is_imported(foreign: str, tmp_path: Path) -> None:
    for attempt in (
        lambda: evaluate(["gift"]),
        lambda: resolve_new_run(Path("runs"), "--name", "gift"),
        lambda: resolve_new_run(Path("runs"), "--config", "runs/gift/config.yaml"),
        lambda: parse_options("limit", None, ["--config", "runs/gift/config.yaml"]),
    ):
        with refuses("env.id", value=foreign, expected=f"give --env {foreign} as well"):
            attempt()
    assert not (tmp_path / "trap-sprung").exists()


def test_a_service_imports_no_module_that_only_a_file_names(foreign: str, tmp_path: Path) -> None:
    code, _, errors = wait_for_end(python("-m", "zerobeast.services.worker", "--config", "runs/gift/config.yaml"))
    assert (code, foreign in errors) == (2, True)
    assert not (tmp_path / "trap-sprung").exists()


GIVEN = {
    "root": "/gift/runs",
    "env.id": "CartPole-v1,evil:Free-v0",
    "env.kwargs": {"inner": [{"id": "evil:Free-v0"}]},
    "env.options": {"level": "evil:Free-v0", "share": "{progress}"},
    "evaluate.levels": "evil:Free-v0",
    "learner.store": "../elsewhere",
    "learner.meeting": "tcp://127.0.0.1:29500",
    "security.keys": "/gift/keys",
    "security.secret": "/gift/secret",
    "security.insecure": True,
    "envserver.endpoint": "tcp://*:5550",
    "broker.endpoint": "tcp://10.0.0.1:5555",
    "learner.endpoint": "tcp://learner:5560",
    "learner.rank_endpoints": "tcp://127.0.0.1:5570,ipc:///gift/socket",
    "health.host": "0.0.0.0",
}


@pytest.mark.parametrize(("path", "value"), GIVEN.items(), ids=GIVEN)
@pytest.mark.parametrize("own", [TrainFlags, Instance], ids=["beast", "service"])
def test_what_a_file_may_not_decide_is_refused_unless_a_flag_or_variable_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, value: object, own: type[Section]
) -> None:
    file = tmp_path / "gift.yaml"
    monkeypatch.setenv("XDG_STATE_HOME", str(file))  # so that nothing can be remembered
    file.write_text(json.dumps({path: value, "preset": "classic"}))
    name = {"env.id": "env", "security.insecure": "insecure"}.get(path, path)
    text = value if isinstance(value, str) else json.dumps(value)
    asked: list[object] = []
    keys = ["--security.keys", "k"] if path == "security.secret" else []
    variable = {f"BEAST_{path.upper().replace('.', '__')}": text}
    for flags, environ in ((["--config", str(file), *keys], {}), (keys, {"BEAST_CONFIG": str(file)})):
        wanted = f"give --{name} {shlex.quote(text)} as well"
        with refuses(path, value=value, layer=f"file {file}: {path}", expected=wanted):
            resolve_flags(flags, environ, own=own, describe=asked.append)
        for more, others in (([f"--{path}={text}"], {}), ([], variable)):
            config = resolve_flags([*flags, *more], {**environ, **others}, own=own).config
            assert value_at(config, path) == value
            handed_on = confirmation(decisive_values(config))
            assert resolve_flags([*flags, *handed_on], environ, own=own).config == config, "as launchers hand it on"
    assert not asked, "an environment was made to see which preset fits"
    assert value_at(resolve_flags(["--config", str(file), *keys], {}, read_only=True).config, path) == value


def test_a_file_may_decide_all_that_stays_on_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    kwargs = {"size": 5, "rate": 1e-3, "fast": True, "inner": {"steps": [1, 2.5], "seed": None}}
    places = {"envserver.endpoint": "ipc://e", "broker.endpoint": "tcp://[::1]:5555", "health.host": "localhost"}
    places |= {"root": "runs/others", "learner.store": "store", "env.options": {"difficulty": ["{progress}"]}}
    file.write_text(json.dumps({"env": {"id": "CartPole-v1", "kwargs": kwargs}, **places, "security": {"keys": ""}}))
    config = resolve_flags(["--config", str(file)], {}).config
    assert (config.env.kwargs, decisive_values(config)) == (kwargs, {})
    assert decisive_values(RunConfig()) == {}


def test_every_setting_that_takes_text_declares_what_it_decides() -> None:
    assert len(TREE) > 100, "all algorithms are imported"
    for command in pkgutil.iter_modules(cli.__path__, "zerobeast.cli."):
        importlib.import_module(command.name)
    silent = {
        f"{section.__name__}.{name}"
        for section in subclasses(Section)
        for name, field in section.model_fields.items()
        if section.__module__.startswith("zerobeast.") and section_of(field) is None
        if takes_text(field.annotation) and not field.json_schema_extra
    }
    assert not silent, "`decides=NO_GUARD` for what is data and nothing else"


def subclasses(kind: type[Section]) -> Iterator[type[Section]]:
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


class Foreign(AlgorithmSettings):
    data: str = setting("", "a text of an algorithm of another package, which declares nothing")
    mode: Literal["a", "b"] = setting("a", "one of some words")


def test_a_text_that_declares_nothing_is_not_for_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(algorithm.known_specs, "foreign", AlgorithmSpec("foreign", Foreign, "os:path"))
    file = tmp_path / "gift.yaml"
    file.write_text(json.dumps({"algo": "foreign", "foreign": {"mode": "b"}}))
    assert resolve_flags(["--config", str(file)], {}).config.section == "foreign"
    file.write_text(json.dumps({"algo": "foreign", "foreign": {"data": "/gift"}}))
    for read_only in (False, True):
        with refuses("foreign.data", value="/gift"):
            resolve_flags(["--config", str(file)], {}, read_only=read_only)


#: environments, and arguments with which their packages start programs, read or write files, unpickle or import
ARGUMENTS: list[tuple[str, dict[str, object]]] = [
    ("envpool/Basic-v1", {"vzd_path": "/proc/self/cwd/runs/gift/go"}),
    ("CartPole-v1,envpool/Basic-v1", {"cfg_path": "gift.cfg"}),
    ("zipf(envpool/Basic-v1,CartPole-v1;1)", {"lmp_save_dir": "/any"}),
    ("gfootball/1_vs_1_easy", {"extra_players": ["replay:/=1,path=runs/gift/dump,right_players=1"]}),
    ("gfootball/1_vs_1_easy", {"other_config_options": {"dump_full_episodes": True}}),
    ("gfootball/1_vs_1_easy", {"representation": "/gift"}),
    ("pettingzoo/classic/chess_v6", {"render_mode": "human"}),
    ("Own-v0", {"env_id": "evilmod:/x"}),
    ("Own-v0", {"inner": {"evilmod:x": 1}}),
    ("Own-v0", {"port": "600{number}"}),
]


@pytest.mark.parametrize(("env_id", "kwargs"), ARGUMENTS)
def test_arguments_with_which_environments_do_more_than_play_are_not_for_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env_id: str, kwargs: dict[str, object]
) -> None:
    for engine in ("envpool", "gfootball"):  # which another test may have imported in this process
        monkeypatch.delitem(sys.modules, engine, raising=False)
    file = given_by_file(tmp_path, env_id, kwargs)
    for more in ([], ["--env", env_id]):
        with refuses("env.kwargs", value=kwargs):
            resolve_flags(["--config", file, *more], {})
    assert not {"envpool", "gfootball"} & sys.modules.keys(), "nothing is imported to judge"


def given_by_file(folder: Path, env_id: str, kwargs: Mapping[str, object]) -> str:
    """A file with an environment and its arguments."""
    (folder / "config.yaml").write_text(json.dumps({"env": {"id": env_id, "kwargs": kwargs}, "preset": "classic"}))
    return str(folder / "config.yaml")


def test_no_run_or_export_gives_its_env_such_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run, export, (env_id, kwargs) = tmp_path / "runs" / "gift", tmp_path / "export", ARGUMENTS[0]
    run.mkdir(parents=True)
    export.mkdir()
    settings = json.loads(Path(given_by_file(run, env_id, kwargs)).read_text())
    (run / "checkpoint.pt").touch()
    save_file({"w": torch.zeros(1)}, export / "model.safetensors")
    (export / "config.json").write_text(json.dumps({"format": 2, "agent_steps": 1, "env": {}, "settings": settings}))
    for attempt in (lambda: resolve_new_run(Path("runs"), "--name", "gift"), lambda: evaluate(["export"])):
        with refuses("env.kwargs", value=kwargs):
            attempt()


def test_a_file_may_give_environments_numbers_and_the_words_that_their_backend_lists(tmp_path: Path) -> None:
    for env_id, kwargs in (
        ("envpool/Basic-v1", {"use_combined_action": True, "max_episode_steps": 100, "agent_start_pos": [1, 1]}),
        ("gfootball/1_vs_1_easy,gfootball/5_vs_5", {"representation": "simple115v2", "channel_dimensions": [96, 72]}),
    ):
        assert resolve_flags(["--config", given_by_file(tmp_path, env_id, kwargs)], {}).config.env.kwargs == kwargs
    flags = ["--config", given_by_file(tmp_path, "CartPole-v1", {"reward_type": "dense"}), "--env"]
    resolve_flags([*flags, "envpool/FetchReach-v4"], {})
    with refuses("env.kwargs"):  # to the environment of a reference these are texts
        resolve_flags([*flags, "envpool/own.py:Own"], {})


HARMLESS = {"symbol": "NASDAQ:AAPL", "host": "localhost:8080"}


def test_what_was_confirmed_holds_for_those_values_of_that_folder_from_the_same_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = EnvSpec("Own-v0", ArraySpace.box((3,)), ArraySpace.discrete(2))
    monkeypatch.setattr("zerobeast.plan.resolution.fetch_spec", lambda _: spec)
    unasked = {"fetch_run_spec": lambda _: spec, "check_once": lambda _: [], "pad_config": lambda config: config}
    for name, instead in unasked.items():
        monkeypatch.setattr(f"zerobeast.plan.preparation.{name}", instead)
    kwargs = json.dumps(HARMLESS)
    run = resolve_new_run(Path("runs"), "--name=own", "--env=Own-v0", f"--env.kwargs={kwargs}", "--preset=classic")
    with start.prepare_fleet(run, {}, say=lambda _: None):
        pass
    assert resolve_new_run(Path("runs"), "--name", "own").config.env.kwargs == HARMLESS
    resolve_flags(["--config", "runs/own/config.yaml", *flags_for(SAFE_VALUES)], {})
    with refuses("run"):  # it has no checkpoint, and there is no other reason
        evaluate(["own"])
    moved = tmp_path / "runs" / "moved"
    shutil.copytree("runs/own", moved)
    other = (tmp_path / "runs/own/config.yaml").read_text().replace("NASDAQ:AAPL", "NASDAQ:EVIL")
    (tmp_path / "runs" / "own" / "other.yaml").write_text(other)
    for file in ("runs/moved/config.yaml", "runs/own/other.yaml"):
        with refuses("env.kwargs"):
            resolve_flags(["--config", file], {})
    monkeypatch.chdir(moved)
    with refuses("env.kwargs"):
        resolve_flags(["--config", "../own/config.yaml"], {})


def test_a_folder_from_elsewhere_needs_the_flag_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    gift = ["--config", given_by_file(tmp_path, "Own-v0", HARMLESS)]
    without = json.dumps(dict.fromkeys(HARMLESS))
    for flags in ([], ["--env.kwargs", without], ["--env.kwargs", json.dumps(HARMLESS)]):
        with refuses("env.kwargs"):
            resolve_flags(gift, {})
        resolve_flags([*gift, *flags], {}) if flags else None
    assert resolve_flags(gift, {}).config.env.kwargs == HARMLESS


def test_what_a_file_gives_beside_a_flag_is_judged_as_if_it_stood_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = given_by_file(tmp_path, "Own-v0", HARMLESS)

    def given(**kwargs: object) -> list[str]:
        return ["--config", file, "--env.kwargs", json.dumps(kwargs)]

    only_host = {"host": HARMLESS["host"]}
    for flags, left in ((given(width=3), HARMLESS), (given(width=3, symbol=HARMLESS["symbol"]), only_host)):
        with refuses("env.kwargs", value=left):
            resolve_flags(flags, {})
        seen = resolve_flags(flags, {}, read_only=True)
        assert list(trust.refusals_of(seen.config, seen.in_files)) == ["env.kwargs"], "as before environments are made"
    replaced = resolve_flags(given(symbol="A", host=None, width=3), {})
    assert replaced.config.env.kwargs == {"symbol": "A", "width": 3}
    assert not trust.refusals_of(replaced.config, replaced.in_files)
    resolve_flags(given(**HARMLESS, width=3), {})
    assert resolve_flags(given(width=4), {}).config.env.kwargs == {**HARMLESS, "width": 4}, "the file's are known now"


def test_files_of_confirmations_are_private_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(state, "MAX_NOTES", 3)
    for number in range(5):
        confirmations.remember(tmp_path, {"env.kwargs": {"secret": f"text {number}"}})
    folder = tmp_path / "zerobeast" / "known"
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert len(files := list(folder.iterdir())) == 3
    assert not any(file.read_bytes() or "text" in file.name for file in files)
    monkeypatch.setenv("XDG_STATE_HOME", "relative")  # to the folder one stands in, which others may have packed
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    confirmations.remember(tmp_path, {"env.kwargs": {"a": "b"}})
    assert ((tmp_path / "home/.local/state/zerobeast/known").is_dir(), Path("relative").exists()) == (True, False)


def test_an_evaluation_uses_nothing_of_a_run_that_reaches_or_admits_anyone(tmp_path: Path) -> None:
    given = {path: value for path, value in GIVEN.items() if not path.startswith("env.") and path != LEVELS}
    (tmp_path / "config.yaml").write_text(json.dumps(given))
    config = resolve_flags(["--config", str(tmp_path / "config.yaml"), *flags_for(SAFE_VALUES)], {}).config
    alone = RunConfig()
    assert (config.security, config.health) == (alone.security, alone.health)
    assert config.learner.endpoint == alone.learner.endpoint
