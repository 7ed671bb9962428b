"""Limits on open files: raised as far as allowed, and refused with a sentence if that is too low."""

import os
import resource
from pathlib import Path

import pytest

from zerobeast.common.errors import ConfigError
from zerobeast.common.process import usage
from zerobeast.common.settings.tree import RunConfig
from zerobeast.launcher.fleet import files_needed

UNLIMITED = resource.RLIM_INFINITY


class Limits:
    """Stands in for the limits of this process."""

    def __init__(self, soft: int, hard: int) -> None:
        self.now = (soft, hard)

    def get(self, _which: int) -> tuple[int, int]:
        return self.now

    def set(self, _which: int, limits: tuple[int, int]) -> None:
        self.now = limits


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1024, 4096), (4096, 4096)),
        ((1024, 10**9), (usage.PLENTY, 10**9)),
        ((1024, UNLIMITED), (usage.PLENTY, UNLIMITED)),
        ((10**6, 10**6), (10**6, 10**6)),
        ((UNLIMITED, UNLIMITED), (UNLIMITED, UNLIMITED)),
    ],
)
def test_the_limit_is_raised_as_far_as_the_system_lets_it(
    monkeypatch: pytest.MonkeyPatch, before: tuple[int, int], after: tuple[int, int]
) -> None:
    limits = Limits(*before)
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    monkeypatch.setattr(resource, "setrlimit", limits.set)
    usage.allow_files()
    assert limits.now == after


def test_too_low_a_limit_is_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", Limits(100, 1000).get)
    with pytest.raises(ConfigError, match=r"a run may need 2,000 open files, .* a process 1,000: raise `ulimit -n`"):
        usage.allow_files(needed=2000, why="a run")


def test_open_files_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = usage.open_files()
    files = [(tmp_path / str(number)).open("w") for number in range(5)]
    assert usage.open_files() == before + 5
    for file in files:
        file.close()
    assert 0 < before <= len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(usage, "OPEN", tmp_path / "nowhere")
    assert usage.open_files() == 0, "unknown"


def test_a_run_on_one_machine_counts_the_connections_of_its_busiest_service() -> None:
    def needed(**counts: int) -> int:
        local = {"placement": "apart", **counts}
        threads = {"threads": 1}
        tree = {"local": local, "envserver": {"workers": 4, **threads}, "learner": threads, "broker": threads}
        return files_needed(RunConfig.model_validate(tree))

    assert needed(actors=1) == 64 + 2 + 3 * 2 * 4
    assert needed(actors=10) == 64 + 20 + 3 * 20 * 4
    assert needed(actors=10, env_servers=10) == 64 + 20 + 3 * 2 * 4
