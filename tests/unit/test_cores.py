"""How many cores there are, and how they are shared out among the services of a run."""

import os
from pathlib import Path

import pytest

from zerobeast.common.config.load import load
from zerobeast.common.process.usage import core_names, cores, cpu_pressure
from zerobeast.launcher import placement as module
from zerobeast.launcher.placement import placement_of, share_out, spread


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("envs", [1, 4, 64])
@pytest.mark.parametrize("available", range(1, 65))
def test_threads_fit_the_cores_and_every_service_has_one(available: int, envs: int, *, gpu: bool) -> None:
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
        (["--dqn.samples_per_insert", "8"], 2),
        (["--dqn.samples_per_insert", "2"], 1),
        (["--dqn.samples_per_insert", "8", "--net.torso", "mlp"], 1),
    ],
)
def test_a_learner_that_uses_steps_often_has_more_threads(flags: list[str], threads: int) -> None:
    config = load(["--algo", "dqn", "--env", "PongNoFrameskip-v4", *flags], {})
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
    [
        (1, False, ("fused", 1, 2)),
        (2, False, ("fused", 2, 1)),
        (16, False, ("fused", 2, 1)),
        (16, True, ("apart", 0, 2)),
    ],
)
def test_auto_fuses_without_a_gpu(available: int, expected: tuple[str, int, int], *, gpu: bool) -> None:
    placement = placement_of(load([], {}), available, gpu=gpu)
    assert (placement.name, placement.processes["worker"], placement.env_groups) == expected
    assert placement.all_actors * placement.env_groups == 2
    assert placement.name in str(placement)


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("--env CartPole-v1 --total_steps 5000", "serial"),
        ("--env CartPole-v1,Acrobot-v1 --total_steps 5000 --actor.env_groups 3", "serial"),
        ("--env CartPole-v1 --total_steps 500000", "fused"),
        ("--env CartPole-v1 --total_steps 5000 --local.workers 1", "fused"),
        ("--env CartPole-v1 --total_steps 5000 --local.placement fused", "fused"),
        ("--env CartPole-v1 --total_steps 5000 --deterministic true", "fused"),
        ("--env CartPole-v1 --total_steps 5000 --learner.ranks 2", "fused"),
        ("--env PongNoFrameskip-v4 --total_steps 5000", "fused"),
        ("--env mine:Slow --total_steps 5000", "fused"),
    ],
)
def test_auto_has_one_process_for_a_short_run_of_a_cheap_environment(flags: str, name: str) -> None:
    placement = placement_of(load(["--preset", "classic", *flags.split()], {}), 2, gpu=False)
    assert placement.name == name
    assert placement.all_actors * placement.env_groups >= 2


@pytest.mark.parametrize("name", ["auto", "apart", "fused", "mixed", "serial"])
def test_half_a_core_is_enough_to_run_on(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(module, "cores", lambda: 0.5)
    placement = placement_of(load(["--local.placement", name], {}), gpu=False)
    assert min(placement.threads.values()) == 1
    assert placement.all_actors >= 1


@pytest.mark.parametrize("name", ["apart", "fused", "serial"])
def test_a_run_has_equally_many_env_groups_in_every_placement(name: str) -> None:
    placement = placement_of(load(["--local.placement", name, "--local.actors", "3"], {}), 4, gpu=False)
    assert placement.all_actors * placement.env_groups == 6


@pytest.mark.parametrize("available", range(1, 33))
@pytest.mark.parametrize("name", ["apart", "fused", "mixed", "serial"])
def test_no_placement_has_more_threads_than_cores(name: str, available: int) -> None:
    placement = placement_of(load(["--local.placement", name], {}), available, gpu=False)
    threads = placement.threads
    assert min(threads.values()) >= 1
    if name == "fused":
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
