"""Files from strangers are data: the contents of a config or a run folder are read and never run."""

from datetime import datetime
from pathlib import Path

import pytest

from zerobeast.cli.evaluate import main as evaluate
from zerobeast.cli.train import TrainFlags, settle
from zerobeast.common.config.load import gather, load
from zerobeast.common.errors import ConfigError
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec
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


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run folder that contains a module, importable from here, and names it as its environment."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "gift"
    run.mkdir(parents=True)
    (run / "evil.py").write_text("import os; os.mkdir('trap-sprung')")
    (run / "config.yaml").write_text("env: {id: 'runs.gift.evil:Free-v0'}")
    (run / "checkpoint.pt").touch()
    return "runs.gift.evil:Free-v0"


def test_no_file_decides_alone_which_module_is_imported(foreign: str, tmp_path: Path) -> None:
    sentence = f"'{foreign}' imports a module, which a file may not decide alone: say --env {foreign} as well"
    for attempt in (
        lambda: evaluate(["gift"]),
        lambda: settle(["--name", "gift"], {}, NOW, own=TrainFlags),
        lambda: settle(["--config", "runs/gift/config.yaml"], {}, NOW, own=TrainFlags),
        lambda: parse("limit", ["--config", "runs/gift/config.yaml"]),
    ):
        with pytest.raises(ConfigError) as caught:
            attempt()
        assert sentence in str(caught.value)
    assert not (tmp_path / "trap-sprung").exists()


def test_a_user_who_names_the_module_may_have_it(foreign: str) -> None:
    spec = EnvSpec(foreign, ArraySpace.box((3,)), ArraySpace.discrete(2))
    for flags, environ in ((["--env", foreign], {}), ([], {"BEAST_ENV": foreign})):
        assert (
            settle(["--name", "gift", *flags], environ, NOW, own=TrainFlags, describe=lambda _: spec).config.env.id
            == foreign
        )
