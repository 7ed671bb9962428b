"""What a machine gives a run: cores, shared out among its services, and open files."""

import os
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerobeast.common.config.load import load
from zerobeast.common.errors import ConfigError
from zerobeast.common.process import usage
from zerobeast.common.process.usage import core_names, cores, cpu_pressure
from zerobeast.common.settings.tree import RunConfig
from zerobeast.launcher import placement as module
from zerobeast.launcher.fleet import files_needed
from zerobeast.launcher.placement import placement_of, share_out, spread

PLACEMENTS = ["auto", "apart", "fused", "mixed", "serial"]


@given(st.integers(1, 64), st.integers(1, 64), st.booleans())
def test_threads_fit_the_cores_and_every_service_has_one(available: int, envs: int, gpu: bool) -> None:
    shares = share_out(available, envs, gpu=gpu)
    assert min(shares) >= 1
    assert sum(shares) <= max(3, available)
    assert shares[2] <= envs


def test_shares_follow_the_cost_of_the_parts() -> None:
    assert share_out(2, 16, gpu=False) == (1, 1, 1)
    assert share_out(16, 16, gpu=False) == (7, 4, 5)
    assert share_out(16, 32, gpu=True) == (1, 1, 14)
    assert share_out(2, 16, gpu=False, uses=8) == (2, 1, 1)
    assert share_out(16, 16, gpu=False, uses=8) == (14, 1, 1)


@pytest.mark.parametrize(
    ("flags", "threads"),
    [
        ("--dqn.samples_per_insert 8", 2),
        ("--dqn.samples_per_insert 2", 1),
        ("--dqn.samples_per_insert 8 --net.torso mlp", 1),
    ],
)
def test_a_learner_that_uses_steps_often_has_more_threads(flags: str, threads: int) -> None:
    config = load(["--algo", "dqn", "--env", "PongNoFrameskip-v4", *flags.split()], {})
    assert placement_of(config, 2, gpu=False).threads["learner.threads"] == threads


@pytest.mark.parametrize(("actors", "threads"), [(1, 14), (4, 3), (16, 1)])
def test_sessions_that_step_at_the_same_time_share_the_cores(actors: int, threads: int) -> None:
    placement = placement_of(load(["--local.actors", str(actors)], {}), 16, gpu=True)
    assert placement.threads["envserver.threads"] == placement.threads["envserver.workers"] == threads


@pytest.mark.parametrize(
    ("groups", "available", "expected"),
    [(2, 2, (2, 1)), (2, 1, (1, 2)), (2, 16, (2, 1)), (6, 4, (3, 2)), (7, 4, (1, 7))],
)
def test_workers_have_as_many_groups_as_the_run_has(groups: int, available: int, expected: tuple[int, int]) -> None:
    assert spread(groups, available) == expected


@pytest.mark.parametrize(
    ("available", "gpu", "expected"),
    [(1, False, ("fused", 1, 2)), (16, False, ("fused", 2, 1)), (16, True, ("apart", 0, 2))],
)
def test_auto_fuses_without_a_gpu(available: int, expected: tuple[str, int, int], *, gpu: bool) -> None:
    placement = placement_of(load([], {}), available, gpu=gpu)
    assert (placement.name, placement.processes["worker"], placement.env_groups) == expected
    assert placement.all_actors * placement.env_groups == 2
    assert placement.name in str(placement)


SHORT = "--env CartPole-v1 --total_steps 5000"


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (SHORT, "serial"),
        ("--env CartPole-v1,Acrobot-v1 --total_steps 5000 --actor.env_groups 3", "serial"),
        ("--env CartPole-v1 --total_steps 500000", "fused"),
        *((f"{SHORT} {flag}", "fused") for flag in ("--local.workers 1", "--deterministic true", "--learner.ranks 2")),
        ("--env PongNoFrameskip-v4 --total_steps 5000", "fused"),
        ("--env mine:Slow --total_steps 5000", "fused"),
    ],
)
def test_auto_has_one_process_for_a_short_run_of_a_cheap_environment(flags: str, name: str) -> None:
    placement = placement_of(load(["--preset", "classic", *flags.split()], {}), 2, gpu=False)
    assert placement.name == name
    assert placement.all_actors * placement.env_groups >= 2


@pytest.mark.parametrize("name", PLACEMENTS)
def test_no_placement_has_more_threads_than_cores_or_loses_an_env_group(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(module, "cores", lambda: 0.5)
    for actors in (1, 3):
        config = load(["--local.placement", name, "--local.actors", str(actors)], {})
        placements = {available: placement_of(config, available, gpu=False) for available in range(1, 33)}
        for available, placement in [(1, placement_of(config, gpu=False)), *placements.items()]:
            threads = placement.threads
            assert min(threads.values()) >= 1
            if name != "mixed":
                assert placement.all_actors * placement.env_groups == 2 * actors
            if placement.name == "fused" and actors == 1:
                brokers = placement.processes["worker"] * threads["broker.threads"]
                assert threads["learner.threads"] + brokers <= max(3, available)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "50000 100000\n"}, 0.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "nonsense"}, None),
        ({"cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_a_container_s_quota_bounds_its_cores(tmp_path: Path, files: dict[str, str], expected: float | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    everything = len(os.sched_getaffinity(0))
    assert cores(tmp_path) == (everything if expected is None else min(expected, everything))
    names = core_names(tmp_path)
    assert len(set(names)) == len(names) == max(1, int(cores(tmp_path)))
    shared = names == core_names(tmp_path / "another")
    assert shared == (cores(tmp_path) == everything), "a quota is a container's own, cores are not"


def test_the_pressure_is_the_container_s_or_the_machine_s_and_else_follows_from_the_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (19.0, 9.0, 9.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    places = tmp_path / "own", tmp_path / "all"
    assert cpu_pressure(places) == pytest.approx(17 / 19)
    places[0].write_text("some nonsense")
    places[1].write_text("some avg10=97.66 avg60=1.00 avg300=0.00 total=12\nfull avg10=0.00\n")
    assert cpu_pressure(places) == pytest.approx(0.9766)
    places[0].write_text(places[1].read_text().replace("97.66", "5.00"))
    assert cpu_pressure(places) == pytest.approx(0.05)


UNLIMITED = resource.RLIM_INFINITY


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
    limits = [before]
    monkeypatch.setattr(resource, "getrlimit", lambda _which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _which, given: limits.append(given))
    usage.allow_files()
    assert limits[-1] == after


def test_too_low_a_limit_is_refused_and_names_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (100, 1000))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    with pytest.raises(ConfigError, match=r"2,000.*1,000"):
        usage.allow_files(needed=2000, why="a run")


def test_open_files_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = usage.open_files()
    with (tmp_path / "a").open("w"), (tmp_path / "b").open("w"):
        assert usage.open_files() == before + 2
    assert 0 < before <= len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(usage, "OPEN", tmp_path / "nowhere")
    assert usage.open_files() == 0, "unknown"


@pytest.mark.parametrize(("actors", "servers", "busiest"), [(1, 1, 2), (10, 1, 20), (10, 10, 2)])
def test_a_run_on_one_machine_counts_the_connections_of_its_busiest_service(
    actors: int, servers: int, busiest: int
) -> None:
    local = {"placement": "apart", "actors": actors, "env_servers": servers}
    one = {"threads": 1}
    tree = {"local": local, "envserver": {"workers": 4, **one}, "learner": one, "broker": one}
    assert files_needed(RunConfig.model_validate(tree)) == 64 + 2 * actors + 3 * busiest * 4
