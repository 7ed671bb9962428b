"""Files from strangers are data: the contents of a config or a run folder are read and never run."""

import json
import shlex
from datetime import datetime
from pathlib import Path

import pytest

from tests.helpers import finished, python
from zerobeast.cli.evaluate import main as evaluate
from zerobeast.cli.train import TrainFlags
from zerobeast.common.config.load import gather, load
from zerobeast.common.config.process import Instance
from zerobeast.common.config.table import value_at
from zerobeast.common.config.trust import ALONE, flags_of
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings.section import Section
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.launcher import start
from zerobeast.launcher.start import settle
from zerobeast.tools.bench.options import parse

NOW = datetime(2026, 1, 31).astimezone()
HOSTILE = [
    "!!python/object/apply:os.mkdir [trap-sprung]",
    "!!python/object/new:os.mkdir [trap-sprung]",
    "name: !!python/name:os.mkdir",
    "name: !!python/module:os",
    "env: {kwargs: {x: !!python/object/apply:os.mkdir [trap-sprung]}}",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_config_that_would_run_code_is_refused_without_running_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"run\.yaml.*not valid YAML"):
        load(["--config", "run.yaml"], {})
    with pytest.raises(ConfigError, match=r"KWARGS.*expected a mapping"):
        gather([], {"BEAST_ENV__KWARGS": "!!python/object/apply:os.mkdir [trap-sprung]"})
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
    sentence = f"'{foreign}' imports a module, which a file may not decide alone: give --env {foreign} as well"
    for attempt in (
        lambda: evaluate(["gift"]),
        lambda: settle(["--name", "gift"], {}, NOW, own=TrainFlags),
        lambda: settle(["--config", "runs/gift/config.yaml"], {}, NOW, own=TrainFlags),
        lambda: parse("limit", None, ["--config", "runs/gift/config.yaml"]),
    ):
        with pytest.raises(ConfigError) as caught:
            attempt()
        assert sentence in str(caught.value)
    assert not (tmp_path / "trap-sprung").exists()


GIVEN = {
    "env.id": "CartPole-v1,evil:Free-v0",
    "env.kwargs": {"inner": [{"id": "evil:Free-v0"}]},
    "security.keys": "/gift/keys",
    "security.secret": "/gift/secret",
    "security.insecure": True,
    "envserver.endpoint": "tcp://*:5550",
    "broker.endpoint": "tcp://10.0.0.1:5555",
    "learner.endpoint": "tcp://learner:5560",
    "health.host": "0.0.0.0",
}


def text_of(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@pytest.mark.parametrize(("path", "value"), GIVEN.items(), ids=GIVEN)
@pytest.mark.parametrize("own", [TrainFlags, Instance], ids=["beast", "service"])
def test_what_a_file_may_not_decide_is_refused_unless_a_flag_or_variable_gives_it(
    tmp_path: Path, path: str, value: object, own: type[Section]
) -> None:
    file = tmp_path / "gift.yaml"
    file.write_text(json.dumps({path: value, "preset": "classic"}))
    name = {"env.id": "env", "security.insecure": "insecure"}.get(path, path)
    sentence = f"which a file may not decide alone: give --{name} {shlex.quote(text_of(value))} as well"
    asked: list[object] = []
    keys = ["--security.keys", "k"] if path == "security.secret" else []
    variable = {f"BEAST_{path.upper().replace('.', '__')}": text_of(value)}
    for flags, environ in ((["--config", str(file), *keys], {}), (keys, {"BEAST_CONFIG": str(file)})):
        with pytest.raises(ConfigError) as refused:
            gather(flags, environ, own=own, describe=asked.append)
        assert str(refused.value).startswith(f"file {file}: {path}: {value!r} ")
        assert str(refused.value).endswith(sentence)
        for more, others in (([f"--{path}={text_of(value)}"], {}), ([], variable)):
            config = gather([*flags, *more], {**environ, **others}, own=own).config
            assert value_at(config, path) == value
            assert gather([*flags, *flags_of(config)], environ, own=own).config == config, "as launchers hand it on"
    assert not asked, "an environment was made to see which preset fits"
    assert value_at(gather(["--config", str(file), *keys], {}, read_only=True).config, path) == value


def test_a_file_may_decide_all_that_stays_on_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    kwargs = {"device": "cuda:0", "url": "http://host/a", "at": "12:30", "text": "key: value"}
    places = {"envserver.endpoint": "ipc://e", "broker.endpoint": "tcp://[::1]:5555", "health.host": "localhost"}
    file.write_text(json.dumps({"env": {"id": "CartPole-v1", "kwargs": kwargs}, **places, "security": {"keys": ""}}))
    config = gather(["--config", str(file)], {}).config
    assert (config.env.kwargs, flags_of(config)) == (kwargs, [])
    assert flags_of(RunConfig()) == []


@pytest.mark.parametrize("module", ["evil", "evil.twin", "e-vil", "my evil", "2evil"])
def test_a_module_in_arguments_may_have_any_name(tmp_path: Path, module: str) -> None:
    (tmp_path / "own.yaml").write_text(json.dumps({"env": {"kwargs": {"inner": f"{module}:Free-v0"}}}))
    with pytest.raises(ConfigError, match="imports a module"):
        gather(["--config", str(tmp_path / "own.yaml")], {})


def test_an_evaluation_uses_nothing_of_a_run_that_reaches_or_admits_anyone(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(json.dumps({k: v for k, v in GIVEN.items() if not k.startswith("env.")}))
    config = gather(["--config", str(tmp_path / "config.yaml"), *ALONE], {}).config
    assert (config.security, config.health, config.learner.endpoint) == (
        RunConfig().security,
        RunConfig().health,
        RunConfig().learner.endpoint,
    )


def test_a_service_imports_no_module_that_only_a_file_names(foreign: str, tmp_path: Path) -> None:
    code, _, errors = finished(python("-m", "zerobeast.services.worker", "--config", "runs/gift/config.yaml"))
    assert (code, f"imports a module, which a file may not decide alone: give --env {foreign} as well" in errors) == (
        2,
        True,
    )
    assert not (tmp_path / "trap-sprung").exists()


def test_a_user_who_names_the_module_may_have_it(foreign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = EnvSpec(foreign, ArraySpace.box((3,)), ArraySpace.discrete(2))
    monkeypatch.setattr(start, "spec_of", lambda _: spec)
    for flags, environ in ((["--env", foreign], {}), ([], {"BEAST_ENV": foreign})):
        assert settle(["--name", "gift", *flags], environ, NOW, own=TrainFlags).config.env.id == foreign
