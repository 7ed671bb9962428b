"""What a machine gives a run: cores, shared out among its services, and open files."""

import os
import resource
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.build.errors import refuses
from zerobeast.common.config.load import load_config
from zerobeast.common.process import usage
from zerobeast.common.process.usage import core_names, cores, cpu_pressure
from zerobeast.common.settings.tree import RunConfig
from zerobeast.plan import placement as module
from zerobeast.plan.placement import Placement, placement_of, share_out, spread_groups
from zerobeast.plan.processes import files_needed


def placed(flags: str, available: int, *, gpu: bool = False) -> Placement:
    return placement_of(load_config(flags.split(), {}), available, gpu=gpu)


@given(st.integers(1, 64), st.integers(1, 64), st.booleans())
def test_threads_fit_the_cores_and_every_service_has_one(available: int, envs: int, gpu: bool) -> None:
    shares = share_out(available, envs, gpu=gpu)
    assert min(shares) >= 1
    assert sum(shares) <= max(3, available)
    assert shares[2] <= envs


def test_shares_follow_the_cost_of_the_parts() -> None:
    assert share_out(16, 16, gpu=False) == (7, 4, 5)
    assert share_out(16, 16, gpu=True) == (1, 1, 14)
    assert share_out(16, 16, gpu=False, uses=8) == (14, 1, 1)


def test_a_learner_that_uses_steps_often_has_more_threads_and_actors_share_theirs() -> None:
    often = "--algo dqn --dqn.samples_per_insert 8 --env PongNoFrameskip-v4"
    assert placed(often, 2).threads["learner.threads"] == 2
    dense = f"{often} --net.torso mlp --net.hidden_size 256 --learner.precision float32"
    assert placed(dense, 2).threads["learner.threads"] == 1
    wide = "--env HalfCheetah-v5 --algo sac --learner.precision"
    assert [placed(f"{wide} {one}", 2).threads["learner.threads"] for one in ("float32", "bfloat16")] == [2, 1]
    assert placed(f"{wide} float32 --net.hidden_size 64", 2).threads["learner.threads"] == 1
    assert placed("--local.placement apart --local.actors 2", 16).threads["envserver.workers"] == 2


@given(st.integers(1, 40), st.integers(1, 16))
def test_workers_have_as_many_groups_as_the_run_has(groups: int, available: int) -> None:
    workers, each = spread_groups(groups, available)
    assert workers * each == groups
    assert workers == max(count for count in range(1, available + 1) if groups % count == 0)


SHORT = "--preset classic --env CartPole-v1 --total_steps 5000"


@pytest.mark.parametrize(
    ("flags", "available", "gpu", "expected"),
    [
        ("", 1, False, ("fused", {"learner": 1, "worker": 1}, 2)),
        ("", 16, False, ("fused", {"learner": 1, "worker": 2}, 1)),
        ("", 16, True, ("apart", {"learner": 1, "broker": 1, "envserver": 1, "actor": 1}, 2)),
        (f"{SHORT} --actor.env_groups 3", 2, False, ("serial", {"serial": 1}, 3)),
        (f"{SHORT} --local.workers 1", 2, False, ("fused", {"learner": 1, "worker": 1}, 2)),
        (SHORT.replace("5000", "500000"), 2, False, ("fused", {"learner": 1, "worker": 2}, 1)),
        (SHORT.replace("CartPole-v1", "mine:Slow"), 2, False, ("fused", {"learner": 1, "worker": 2}, 1)),
    ],
)
def test_auto_is_one_process_for_a_short_run_of_a_cheap_environment_and_else_fuses_without_a_gpu(
    flags: str, available: int, expected: tuple[str, dict[str, int], int], *, gpu: bool
) -> None:
    found = placed(flags, available, gpu=gpu)
    processes = {role: count for role, count in found.processes.items() if count}
    assert (found.name, processes, found.env_groups) == expected


@pytest.mark.parametrize("name", ["auto", "apart", "fused", "serial"])
def test_no_placement_has_more_threads_than_cores_or_loses_a_group(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(module, "cores", lambda: 0.5)
    for actors in (1, 3):
        config = load_config(["--local.placement", name, "--local.actors", str(actors)], {})
        placements = [placement_of(config, available, gpu=False) for available in range(1, 33)]
        for available, found in enumerate([placement_of(config, gpu=False), *placements]):
            assert min(found.threads.values()) >= 1
            assert found.all_actors * found.env_groups == 2 * actors
            if found.name == "fused" and actors == 1:
                brokers = found.processes["worker"] * found.threads["broker.threads"]
                assert found.threads["learner.threads"] + brokers <= max(3, available)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "50000 100000\n"}, 0.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
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
    places = own, everywhere = tmp_path / "own", tmp_path / "all"
    assert cpu_pressure(places) == pytest.approx(17 / 19)
    own.write_text("some nonsense")
    everywhere.write_text("some avg10=97.66 avg60=1.00 avg300=0.00 total=12\nfull avg10=0.00\n")
    assert cpu_pressure(places) == pytest.approx(0.9766)
    own.write_text("some avg10=5.00 avg60=1.00")
    assert cpu_pressure(places) == pytest.approx(0.05)


ENDLESS = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "after"),
    [(1024, 4096, 4096), (1024, ENDLESS, usage.PREFERRED_FILES), (10**6, 10**6, 10**6), (ENDLESS, ENDLESS, ENDLESS)],
)
def test_the_limit_is_raised_as_far_as_the_system_lets_it_or_refused(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, after: int
) -> None:
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _which, given: limits.append(given))
    usage.allow_files(needed=4096)
    assert limits[-1] == (after, hard)
    with refuses() if hard == 4096 else nullcontext():
        usage.allow_files(needed=4097)


def test_open_files_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = usage.open_files()
    with (tmp_path / "a").open("w"), (tmp_path / "b").open("w"):
        assert usage.open_files() == before + 2
    monkeypatch.setattr(usage, "DESCRIPTORS_FOLDER", tmp_path / "nowhere")
    assert usage.open_files() == 0, "unknown"


def test_a_run_on_one_machine_counts_the_connections_of_its_busiest_service() -> None:
    for servers, busiest in ((1, 20), (10, 2)):
        local = {"placement": "apart", "actors": 10, "env_servers": servers}
        one = {"threads": 1}
        tree = {"local": local, "envserver": {"workers": 4, **one}, "learner": one, "broker": one}
        assert files_needed(RunConfig.model_validate(tree)) == 64 + 2 * 10 + 3 * busiest * 4
