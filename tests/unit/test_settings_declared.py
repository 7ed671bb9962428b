"""A setting is declared once, and what other rooms know about it stands there alone."""

import ast
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import zerobeast as zb
from tests.build.compose import ROOT
from tests.build.errors import refuses
from tests.helpers import bring
from zerobeast.api import train as api_train
from zerobeast.cli import train
from zerobeast.common.config import flags, request, torchbeast
from zerobeast.common.config.settings_table import TREE
from zerobeast.common.errors import ConfigError
from zerobeast.common.service import entry
from zerobeast.common.settings import EnvConfig, setting
from zerobeast.services.envserver.frames import Frames, StackConfig

TOP = ("common", "services", "zerobeast")
HOMES = ("common/settings/", "common/config/relations.py")  #: declarations, and rules between several settings
#: every other collection of settings, with the reason
NAMED = {
    ("zerobeast/plan/placement.py", "learner.threads"): "cores are shared out among these in this order",
    ("zerobeast/cli/evaluate.py", "evaluate.levels"): "settings that the command has as flags under short names",
}
HEAD = '"""The service that optimises the policy."""'
EDIT = """
    plain: int = setting(3, "a plain setting", ge=1)
    code: str = setting("", "what to import", decides=CODE)
    kept: int = setting(3, "kept by a resumed run", bound=True, of_host=True)
    tool: int = setting(3, "without effect in one placement", about=About.FILES, idle=Idle(("apart",)))
"""
SCRIPT = """
import json, sys
from datetime import datetime
from pathlib import Path
from zerobeast.common.config.describe import settings_help
from zerobeast.common.config.load import Request, resolve_flags
from zerobeast.common.config.settings_table import RUN, topic_of
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings.facts import facts_of
from zerobeast.plan.parent import is_inherited
from zerobeast.plan.run_folder import refuse_changes
from zerobeast.plan.resolution import RunFlags, resolve_run

def mistake(call, *values):
    try:
        return call(*values) and ""
    except ConfigError as error:
        return error.mistakes[0].path

one = ["--env", "CartPole-v1", "--local.placement", "apart"]
Path("ours.yaml").write_text("learner: {plain: 7}")
Path("foreign.yaml").write_text("learner: {code: some.module:name}")
read = lambda argv, environ={}: resolve_flags([*one, *argv], environ).config
notes = []
resolve_run(Request.of_flags([*one, "--learner.tool", "4"], {}, RunFlags), datetime.now(), say=notes.append)
print(json.dumps({
    "flag": read(["--learner.plain", "5"]).learner.plain,
    "variable": read([], {"BEAST_LEARNER__PLAIN": "6"}).learner.plain,
    "file": read(["--config", "ours.yaml"]).learner.plain,
    "bounds": mistake(read, ["--learner.plain", "0"]),
    "guard": mistake(read, ["--config", "foreign.yaml"]),
    "resumed": mistake(refuse_changes, read([]), read(["--learner.kept", "4"])),
    "forked": [path for path in RUN if path.startswith("learner.") and is_inherited(path)],
    "idle": [note for note in notes if "--learner.tool has no effect" in note] != [],
    "compares": [path for path in ("learner.plain", "learner.tool") if not topic_of(path)],
    "compose": [path for path in ("learner.plain", "learner.kept") if not facts_of(RUN[path]).of_host],
    "help": settings_help().count("--learner.plain 3"),
}))
"""


def test_one_line_declares_a_setting_of_each_kind(tmp_path: Path) -> None:
    for folder in TOP:
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "common" / "settings" / "run.py"
    file.write_text(file.read_text().replace(HEAD, HEAD + EDIT, 1))
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    found = subprocess.check_output([sys.executable, "-c", SCRIPT], cwd=tmp_path, env=environ, text=True)
    assert json.loads(found) == {
        "flag": 5,
        "variable": 6,
        "file": 7,
        "bounds": "learner.plain",
        "guard": "learner.code",
        "resumed": "learner.kept",
        "forked": ["learner.kept"],
        "idle": True,
        "compares": ["learner.plain"],
        "compose": ["learner.plain"],
        "help": 1,
    }


class Slow(EnvConfig):
    speed: int = setting(1, "of one backend")


class Fast(EnvConfig):
    speed: int = setting(2, "of another one")


def test_a_section_has_each_setting_of_its_parts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = EnvConfig.model_validate({"id": "football/academy_corner,PongNoFrameskip-v4", "frame_stack": 2})
    alone = env.for_task("football/academy_corner")
    assert (type(env), alone) == (Frames, StackConfig(id=alone.id, frame_stack=2))
    monkeypatch.syspath_prepend(tmp_path)
    lines = (f"{name}/* = {__name__}:{name.title()}" for name in ("slow", "fast"))
    backends = "\n[zerobeast.environments]\nslow/* = tests.build.faulty:BACKEND\nfast/* = tests.build.faulty:BACKEND"
    with bring(tmp_path, EnvConfig.group(), {"both-1.0": "\n".join(lines) + backends}):
        both = EnvConfig.model_validate({"id": "zipf(slow/X,football/a)", "speed": 3})
        assert both.model_dump().items() >= {"speed": 3, "frame_stack": 4}.items()
        assert pickle.loads(pickle.dumps(both)) == both
        for ask in (lambda: EnvConfig.of({"id": "slow/X,fast/X"}), lambda: TREE["env.speed"]):
            with refuses("speed"):
                ask()


def test_each_process_reads_what_was_given_once_and_a_call_in_python_makes_no_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> list[object]:
        raise ConfigError("nothing is built")

    split, read = flags.parse_flags, list[Sequence[str]]()
    for module in (flags, request, torchbeast):
        monkeypatch.setattr(module, "parse_flags", lambda argv, mistakes: read.append(argv) or split(argv, mistakes))
    given = ["--env", "CartPole-v1", "--root", str(tmp_path)]
    assert train.main([*given, "--dry_run"]) == 0
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert entry.main("actor", [*given, "--index", "0"], {}, build=refuse) == ConfigError.exit_code
    assert read == [[*given, "--dry_run"], [*given, "--index", "0"]]
    monkeypatch.setattr(api_train, "StartedRun", lambda resolved, *_: resolved)
    assert zb.start("CartPole-v1", root=tmp_path, total_steps=7).config.total_steps == 7
    assert len(read) == 2


def test_no_other_file_collects_settings() -> None:
    found = dict[tuple[str, str], list[str]]()
    for top in TOP:
        for file in (ROOT / top).rglob("*.py"):
            name = str(file.relative_to(ROOT))
            if not name.startswith(HOMES) and file.name != "config.py":
                every = map(_settings, ast.walk(ast.parse(file.read_text())))
                found |= {(name, paths[0]): paths for paths in every if len(paths) > 1}
    assert found.keys() == NAMED.keys(), found


def _settings(node: ast.AST) -> list[str]:
    """The settings that a literal collects."""
    parts = [*node.keys, *node.values] if isinstance(node, ast.Dict) else getattr(node, "elts", ())
    texts = [str(part.value) for part in parts if isinstance(part, ast.Constant)]
    return [text for text in texts if "." in text and text in TREE]
