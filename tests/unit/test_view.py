"""The live view and its plain lines, from pages to text."""

import io
import math
import os
import sys
from typing import Any

import pytest
from rich.console import Console, RenderableType

from tests.build.pages import PAGES
from zerobeast.common.health import figures
from zerobeast.common.health.figures import ServiceView
from zerobeast.common.settings.tree import RunConfig
from zerobeast.launcher.pages import Snapshot
from zerobeast.launcher.screen import make_screen
from zerobeast.launcher.view import format_line, format_summary, render_screen

PONG = "PongNoFrameskip-v4"
NAME = f"{PONG}-impala-20260131-120000"
RUN = RunConfig.model_validate({"name": NAME, "env": {"id": PONG}, "total_steps": 10_000_000})
LEARNER, ACTOR = ({"state": "ready"} | PAGES[role] for role in ("learner", "actor"))
ENVSERVER = {"state": "ready"} | PAGES["envserver"] | {"busy_fraction": 0.9}


def snapshot(*warnings: str, **pages: dict[str, Any]) -> Snapshot:
    ready = {role: {"state": "ready"} | PAGES[role] for role in ("envserver", "actor", "broker", "learner")}
    known = ready | {"envserver": ENVSERVER} | pages
    page = {"memory_bytes": 321 << 20}
    views = [ServiceView(f"{role} 0", role, own and page | own, 0.5, 0.873) for role, own in known.items()]
    return Snapshot(tuple(views), warnings)


def text_of(renderable: RenderableType, width: int = 80) -> str:
    console = Console(record=True, width=width, file=io.StringIO(), color_system=None)
    console.print(renderable)
    return console.export_text()


def fits(text: str) -> bool:
    """Whether no line is longer than a terminal is wide, and nothing was left out for that."""
    return max(map(len, text.splitlines())) <= 80 and "…" not in text


def test_the_screen_shows_every_figure_at_80_columns() -> None:
    text = text_of(render_screen(RUN, snapshot()))
    assert fits(text)
    for figure in (
        RUN.name,
        "1,234,567/10,000,000 agent steps  12.3%, ETA 1:58:20",
        "1,234 steps/s, 4,938 frames/s",
        "-3.46 mean of the last 100 of 1,500 episodes  ▁▁▃█",
        "1.2 mean 3 max",
        "batch 27.5/256",
        "queue 12/64",
        "environment-bound: ",
    ):
        assert figure in text, figure
    rows = {row.split(" 0")[0]: " ".join(row.split()) for row in text.splitlines()}
    assert rows["learner"] == "learner 0 ready 1:02:05 1,234 steps/s rollouts 31% 321 MB 87%"
    assert rows["envserver"] == "envserver 0 ready - 1,240 steps/s actions 10% 321 MB 87%"


@pytest.mark.parametrize(("tasks", "shown"), [(None, False), (3, False), ({"A-v0": 2.345, "B-v0": None}, True)])
def test_a_run_of_several_environments_has_a_line_for_their_returns(tasks: Any, shown: bool) -> None:
    text = text_of(render_screen(RUN, snapshot(learner=LEARNER | {"mean_return_100_by_task": tasks})))
    assert ("A-v0 2.35, B-v0 -" in text, "of each" in text) == (shown, shown)


@pytest.mark.parametrize("broken", [None, "text", math.nan, math.inf, [], {}, True])
def test_a_missing_or_absurd_number_shows_as_a_dash(broken: Any) -> None:
    page = dict.fromkeys(LEARNER, broken) | {"state": "ready"}
    shown = snapshot(learner=page, broker={"state": "ready", "batch_rows_mean": broken})
    assert "-/10,000,000 agent steps  -, ETA -" in text_of(render_screen(RUN, shown))
    assert format_line(RUN, shown).startswith("-/10,000,000 agent steps | -, ETA - | return -, - episodes | - steps/s")


BEGINS = "1,234,567/10,000,000 agent steps | 12.3%, ETA 1:58:20 | return -3.46, 1,500 episodes | "
RATES = "1,234 steps/s, 4,938 frames/s"
ALONE = ServiceView("learner 0", "learner", LEARNER, code=0)
EVALUATOR = ServiceView("evaluator 0", "evaluator")
SILENT = ServiceView("evaluator 0", "evaluator", {"state": "ready"}, silent_s=30.0)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (snapshot(), BEGINS + RATES),
        (snapshot(learner={}, broker={}), "starting"),
        (Snapshot((ALONE,)), "trained"),
        (Snapshot((ALONE, EVALUATOR)), "trained, the last policies are evaluated"),
        (
            Snapshot((*snapshot().services, SILENT)),
            f"{BEGINS}{RATES} | evaluated -, best -, - waiting | unhealthy: evaluator 0",
        ),
    ],
)
def test_a_line_shows_how_well_the_run_does_and_any_service_that_has_trouble(shown: Snapshot, text: str) -> None:
    assert format_line(RUN, shown).startswith(text)
    full = format_line(RUN, snapshot(), full=True)
    assert full.startswith(f"{BEGINS}{RATES} | lag 1.2 mean 3 max | 7 updates | batch 27.5/256 | queue 12/64 | env")


def test_a_run_that_stops_shows_that_and_no_longer_what_limits_it() -> None:
    text = text_of(render_screen(RUN, snapshot(), stopping=True), width=120)
    assert ("stopping" in text, "-bound" in text) == (True, False)
    assert format_line(RUN, snapshot(), stopping=True) == f"{BEGINS}{RATES} | stopping"
    whole = format_summary(RUN, LEARNER | {"agent_steps": 10_000_000}, 60, finished=True)
    assert all(part in whole for part in ("10,000,000", "100 episodes -3.46", "0:01:00"))


def test_sparklines_and_remaining_times_leave_out_what_is_unknown() -> None:
    assert [figures.sparkline(each) for each in ([], [5, 5], [None, 1, math.nan, 2])] == ["", "▁▁", "▁█"]
    pace = ((50, 10), (150, 10), (50, 0))
    etas = [figures.eta_s(100, {"agent_steps": at, "agent_steps_per_s": rate}) for at, rate in pace]
    assert etas == [5, 0, None], "it needs a rate and never is negative"


def test_a_pipe_without_a_reader_ends_the_showing_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zerobeast.launcher.screen.LINE_PERIOD_S", 0.0)
    reader, writer = os.pipe()
    os.close(reader)
    stream, looks = os.fdopen(writer, "w"), list[Snapshot]()
    monkeypatch.setattr(sys, "stdout", stream)
    shown = make_screen(RUN, lambda: looks.append(Snapshot()) or Snapshot(), plain=True)
    for _ in range(3):
        shown.update(stopping=False)
    shown.close()
    assert len(looks) == 1
    with pytest.raises(BrokenPipeError):
        stream.close()
