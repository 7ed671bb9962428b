"""`beast evaluate` in an environment whose episodes never end."""

import json
import re
from pathlib import Path

import pytest

from tests.unit.test_policy import saved
from zerobeast.cli import evaluate
from zerobeast.common.settings import EnvConfig, EnvServerConfig
from zerobeast.services.envserver.describe import describe

ENDLESS = "tests.integration.endless_env:Endless"


def test_endless_episodes_are_cut_off_and_meanwhile_there_are_lines_of_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluate, "QUIET_S", 0.0)
    spec, *_ = describe(EnvConfig(id=ENDLESS), EnvServerConfig())
    run = saved(tmp_path, "impala", spec.for_policies(), "--net.hidden_size=8")
    flags = ["--env", ENDLESS, "--episodes", "3", "--max_steps", "50", "--json"]
    assert evaluate.main([str(run), *flags]) == 0
    out, lines = capsys.readouterr()
    found = json.loads(out)
    assert (found["lengths"], found["returns"], found["bounded"]) == ([50] * 3, [50.0] * 3, 3)
    steps = [int(each.replace(",", "")) for each in re.findall(r"^0 of 3 episodes, (\S+) agent steps$", lines, re.M)]
    assert steps, lines
    assert steps == sorted(set(steps))
    assert evaluate.main([str(run), "--env", ENDLESS, "--episodes", "20", "--max_steps", "9"]) == 0
    assert "16 of 20 episodes, 16 cut off at evaluate.max_steps" in capsys.readouterr().out
