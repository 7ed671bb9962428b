"""How many env groups a new run has on machines of several sizes."""

import re
from pathlib import Path

import pytest

from tests.helpers import ROOT
from zerobeast.common.config.load import LoadedSettings, resolve_flags
from zerobeast.common.config.settings_table import TREE
from zerobeast.common.settings.facts import facts_of
from zerobeast.plan import machine, placement, spaces
from zerobeast.plan.machine import choose_groups, fit_machine
from zerobeast.plan.spaces import fetch_step_s

PONG = "--env PongNoFrameskip-v4"


def resolved(flags: str) -> LoadedSettings:
    return resolve_flags(flags.split(), {})


@pytest.mark.parametrize(
    ("flags", "step_s", "expected"),
    [
        (PONG, 8e-4, (2, 2, 4, 8, 8)),
        (PONG, 2e-4, (2, 2, 2, 2, 2)),
        (f"{PONG} --algo ppo", 8e-4, (2, 2, 4, 8, 8)),
        ("--env CartPole-v1", 5e-6, (2, 2, 2, 2, 2)),
        ("--env football/academy_empty_goal", 5e-3, (2, 2, 4, 4, 4)),
    ],
)
def test_env_groups_on_2_4_8_16_and_64_cores(flags: str, step_s: float, expected: tuple[int, ...]) -> None:
    config = resolved(flags).config
    assert tuple(choose_groups(config, cores, step_s) for cores in (2, 4, 8, 16, 64)) == expected


@pytest.mark.parametrize(
    "given",
    [
        *("", "--preset atari", "--actor.env_groups 2", "--local.actors 1", "--learner.batch_size 8"),
        *("--deterministic", "--algo dqn", "--local.check false", "--env PongNoFrameskip-v4,BreakoutNoFrameskip-v4"),
    ],
)
def test_a_new_run_has_groups_that_fit_unless_a_number_is_given(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 16.0)
    monkeypatch.setattr(machine, "fetch_step_s", lambda _config: 8e-4)
    found = fit_machine(resolved(f"{PONG} --broker.device cpu {given}"))
    assert ((found.config.actor.env_groups, found.config.actor.envs_per_group) == (8, 4)) == (not given)
    assert found.origins.get("actor.envs_per_group", "").startswith("chosen for 16 cores") == (not given)


@pytest.mark.parametrize("gpu", [True, False])
def test_a_run_with_a_gpu_keeps_the_numbers_of_its_preset(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpu: bool
) -> None:
    drivers = tmp_path / "gpus"
    drivers.mkdir()
    if gpu:
        (drivers / "0000:01:00.0").mkdir()
    monkeypatch.setattr(placement, "NVIDIA", drivers)
    monkeypatch.setattr(machine, "fetch_step_s", lambda _config: 8e-4)
    loaded = resolved(PONG)
    for cores in (4.0, 8.0, 16.0, 64.0):
        monkeypatch.setattr(machine, "cores", lambda cores=cores: cores)
        assert (fit_machine(loaded) is loaded) == (gpu or cores == 4.0)


def test_the_page_lists_what_keeps_the_numbers() -> None:
    listed = (
        (ROOT / "docs/operations.md").read_text().partition("Nothing is chosen if one of")[2].partition(". Neither")[0]
    )
    assert set(re.findall("`(.+?)`", listed)) == {path for path, field in TREE.items() if facts_of(field).scales}


def test_a_step_is_timed_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    config = resolved("--env zipf/Gridworld-small").config
    assert 0 <= (step_s := fetch_step_s(config) or 0.0) < 1
    monkeypatch.setattr(spaces, "ask_env_process", None)
    assert fetch_step_s(config) == step_s
