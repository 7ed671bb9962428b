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


def test_every_hop_is_a_curve_over_agent_steps_and_a_failed_write_costs_its_points_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curves, "PERIOD_S", 0.0)
    writer = curves.Curves(tmp_path)
    others = [page(role, 0.02) for role in HOPS if role != "learner"]
    writer.update(Snapshot((*others, page("learner", 0.04))))  # nothing learned yet
    place = tmp_path / "tensorboard"
    place.write_text("no folder")
    for steps in (100, 200, 300):
        writer.update(Snapshot((*others, page("learner", 0.04, agent_steps=steps), page("actor", 0.04))))
        if place.is_file():
            place.unlink()
    writer.close()
    events = EventAccumulator(str(tmp_path / run_files.TENSORBOARD_SERVICES)).Reload()
    assert sorted(events.Tags()["scalars"]) == sorted(f"hops_ms/{role}.{hop}" for role in HOPS for hop in HOPS[role])
    points = events.Scalars("hops_ms/learner.update")
    assert [(point.step, round(point.value, 3)) for point in points] == [(200, 40.0), (300, 40.0)]
    assert events.Scalars("hops_ms/actor.env_round_trip")[0].value == pytest.approx(30.0), "the mean over both actors"
