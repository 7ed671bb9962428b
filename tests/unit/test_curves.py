"""The launcher's curves: which of a run's hops TensorBoard shows."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from zerobeast.common.files import run_files
from zerobeast.common.health.figures import ServiceView
from zerobeast.common.health.hops import EDGES_S, HOPS
from zerobeast.launcher import curves
from zerobeast.launcher.pages import Snapshot


def page(role: str, seconds: float, **more: int) -> ServiceView:
    """A service with every hop passed four times, in `seconds` each time."""
    entry = {"recent": [4] + [0] * len(EDGES_S), "recent_s": 4 * seconds}
    return ServiceView(role, role, {"hops": dict.fromkeys(HOPS[role], entry), **more})


def test_every_hop_of_every_service_is_a_curve_over_agent_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curves, "PERIOD_S", 0.0)
    roles = {"envserver": 0.01, "actor": 0.02, "broker": 0.03, "learner": 0.04}
    writer = curves.Curves(tmp_path)
    writer.update(Snapshot(tuple(page(role, seconds) for role, seconds in roles.items())))  # nothing learned yet
    for steps in (100, 200):
        services = tuple(page(role, seconds, agent_steps=steps) for role, seconds in roles.items())
        writer.update(Snapshot((*services, page("actor", 0.04))))
    writer.close()
    events = EventAccumulator(str(tmp_path / run_files.TENSORBOARD_SERVICES)).Reload()
    assert sorted(events.Tags()["scalars"]) == sorted(f"hops_ms/{role}.{hop}" for role in HOPS for hop in HOPS[role])
    points = events.Scalars("hops_ms/learner.update")
    assert [(point.step, round(point.value, 3)) for point in points] == [(100, 40.0), (200, 40.0)]
    assert events.Scalars("hops_ms/actor.env_round_trip")[0].value == pytest.approx(30.0), "the mean over both actors"


def test_a_failed_write_costs_the_point_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "PERIOD_S", 0.0)
    (tmp_path / "tensorboard").write_text("no folder")
    writer = curves.Curves(tmp_path)
    writer.update(Snapshot((page("learner", 0.04, agent_steps=100),)))
    (tmp_path / "tensorboard").unlink()
    writer.update(Snapshot((page("learner", 0.04, agent_steps=200),)))
    writer.close()
    events = EventAccumulator(str(tmp_path / run_files.TENSORBOARD_SERVICES)).Reload()
    assert [point.step for point in events.Scalars("hops_ms/learner.update")] == [200]
