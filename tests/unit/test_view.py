"""The live view and its plain lines, from pages to text."""

import io
import math
import re
from typing import Any

import pytest
from rich.console import Console, RenderableType

from zerobeast.common.health import figures
from zerobeast.common.health.figures import ServiceView
from zerobeast.common.settings import EnvConfig
from zerobeast.common.settings.tree import RunConfig
from zerobeast.launcher.pages import Snapshot
from zerobeast.launcher.view import MAX_SERVICES, line, screen, summary

PONG = "PongNoFrameskip-v4"
RUN = RunConfig(name=f"{PONG}-impala-20260131-120000", env=EnvConfig(id=PONG), total_steps=10_000_000)
LEARNER: dict[str, Any] = {
    "state": "ready",
    "uptime_s": 3725.0,
    "agent_steps": 1_234_567,
    "env_frames": 4_938_268,
    "agent_steps_per_s": 1234.4,
    "updates": 7,
    "episodes": 1500,
    "mean_return_100": -3.456,
    "return_history": [-21.0, -20.0, -15.0, -3.456],
    "policy_lag_mean": 1.25,
    "policy_lag_max": 3,
    "queue_rows": 12,
    "queue_capacity": 64,
    "waiting_fraction": 0.31,
}
BROKER = {"state": "ready", "rows_per_s": 1300.0, "batch_rows_mean": 27.5, "max_batch_rows": 256, "busy_fraction": 0.4}
ACTOR = {
    "state": "ready",
    "agent_steps_per_s": 1240.0,
    "waiting_env_fraction": 0.2,
    "waiting_broker_fraction": 0.5,
    "waiting_credit_fraction": 0.1,
}
ENVSERVER = {"state": "ready", "agent_steps_per_s": 1240.0, "busy_fraction": 0.9}


def snapshot(*warnings: str, **pages: dict[str, Any]) -> Snapshot:
    known = {"envserver": ENVSERVER, "actor": ACTOR, "broker": BROKER, "learner": LEARNER} | pages
    page = {"memory_bytes": 321 << 20}
    views = [ServiceView(f"{role} 0", role, own and page | own, 0.5, 0.873) for role, own in known.items()]
    return Snapshot(tuple(views), warnings)


def text_of(renderable: RenderableType, width: int = 80) -> str:
    console = Console(record=True, width=width, file=io.StringIO(), color_system=None)
    console.print(renderable)
    return console.export_text()


def test_the_screen_shows_every_figure_at_80_columns() -> None:
    text = text_of(screen(RUN, snapshot()))
    for figure in (
        RUN.name,
        "PongNoFrameskip-v4, impala",
        "1,234,567/10,000,000 agent steps  12.3%, ETA 1:58:20",
        "1,234 steps/s, 4,938 frames/s",
        "-3.46 mean of the last 100 of 1,500 episodes  ▁▁▃█",
        "1.2 mean 3 max",
        "batch 27.5/256",
        "queue 12/64",
    ):
        assert figure in text, figure
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


def test_a_run_of_several_environments_has_a_line_for_their_returns() -> None:
    by_task = {"MinAtar/Breakout-v0": 2.345, "MinAtar/Asterix-v0": None}
    text = text_of(screen(RUN, snapshot(learner=LEARNER | {"mean_return_100_by_task": by_task})))
    assert "of each  MinAtar/Breakout-v0 2.35, MinAtar/Asterix-v0 -" in text
    for one in ({}, None, 3, "text"):
        assert "of each" not in text_of(screen(RUN, snapshot(learner=LEARNER | {"mean_return_100_by_task": one})))


def test_a_service_has_a_row_with_what_it_waits_for_and_what_it_uses() -> None:
    rows = {row.split(" 0")[0]: " ".join(row.split()) for row in text_of(screen(RUN, snapshot())).splitlines()}
    assert rows["learner"] == "learner 0 ready 1:02:05 1,234 steps/s rollouts 31% 321 MB 87%"
    assert rows["broker"] == "broker 0 ready - 1,300 rows/s requests 60% 321 MB 87%"
    assert rows["actor"] == "actor 0 ready - 1,240 steps/s actions 50% 321 MB 87%"
    assert rows["envserver"] == "envserver 0 ready - 1,240 steps/s actions 10% 321 MB 87%"


@pytest.mark.parametrize("broken", [None, "text", math.nan, math.inf, [], {}, True])
def test_a_missing_or_absurd_number_shows_as_a_dash(broken: Any) -> None:
    page = dict.fromkeys(LEARNER, broken) | {"state": "ready"}
    shown = snapshot(learner=page, broker={"state": "ready", "batch_rows_mean": broken})
    assert "-/10,000,000 agent steps  -, ETA -" in text_of(screen(RUN, shown))
    assert "-/10,000,000 agent steps | -, ETA - | return -, - episodes | - steps/s" in line(RUN, shown)


def test_services_without_a_page_are_shown_as_starting() -> None:
    nothing = Snapshot((ServiceView("learner 0", "learner"), ServiceView("actor 0", "actor")))
    assert text_of(screen(RUN, nothing)).count("starting") == 2
    assert text_of(screen(RUN, Snapshot()))
    assert line(RUN, nothing) == "starting"


def test_large_numbers_still_fit_80_columns() -> None:
    large = {"memory_bytes": 25 << 30}
    page = LEARNER | large | {"agent_steps": 9_999_999_999, "agent_steps_per_s": 99_999.0, "uptime_s": 9e5}
    run = RUN.model_copy(update={"total_steps": 20_000_000_000})
    busy = ACTOR | large | {"waiting_broker_fraction": 1.0, "agent_steps_per_s": 99_999.0, "uptime_s": 9e5}
    views = (
        ServiceView("learner 0", "learner", page, 0, 12.5),
        ServiceView("envserver 99", "envserver", ENVSERVER | large | {"busy_fraction": 0.0}, 99, 12.5),
        ServiceView("actor 99", "actor", busy, 0, 12.5),
    )
    text = text_of(screen(run, Snapshot(views)))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


def test_many_services_are_counted_instead_of_filling_the_terminal() -> None:
    views = tuple(ServiceView(f"actor {i}", "actor", ACTOR) for i in range(MAX_SERVICES + 30))
    text = text_of(screen(RUN, Snapshot(views)))
    assert "and 30 more" in text
    assert f"actor {MAX_SERVICES - 1}" in text
    assert f"actor {MAX_SERVICES} " not in text


def test_warnings_stand_below_and_are_cut_to_the_width() -> None:
    text = text_of(screen(RUN, snapshot("actor 0: WARNING refused a message: [red]not markup[/red] " + "x" * 200)))
    assert "WARNING refused a message: [red]not markup[/red]" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_screen_shows_when_it_is_stopping() -> None:
    assert "stopping" in text_of(screen(RUN, snapshot(), stopping=True), width=120)
    assert line(RUN, snapshot(), stopping=True).endswith("stopping")


def test_a_line_shows_how_well_the_run_does() -> None:
    learned = snapshot(learner=LEARNER | {"loss": 0.12345, "entropy": 0.6789})
    begins = "1,234,567/10,000,000 agent steps | 12.3%, ETA 1:58:20 | return -3.46, 1,500 episodes | "
    assert line(RUN, snapshot()) == begins + "1,234 steps/s, 4,938 frames/s"
    assert line(RUN, learned) == begins + "loss 0.123, entropy 0.679 | 1,234 steps/s, 4,938 frames/s"


def test_a_full_line_has_the_figures_of_services_and_what_limits_them() -> None:
    assert line(RUN, snapshot(), full=True) == (
        "1,234,567/10,000,000 agent steps | 12.3%, ETA 1:58:20 | return -3.46, 1,500 episodes | "
        "1,234 steps/s, 4,938 frames/s | lag 1.2 mean 3 max | 7 updates | "
        "batch 27.5/256 | queue 12/64 | environment-bound"
    )


@pytest.mark.parametrize("full", [False, True])
def test_a_line_names_a_service_that_has_trouble_and_none_that_starts(full: bool) -> None:
    views = [*snapshot().services, ServiceView("evaluator 0", "evaluator", silent_s=30.0)]
    assert "evaluator" not in line(RUN, Snapshot(tuple(views)), full=full)
    views[-1] = ServiceView("evaluator 0", "evaluator", {"state": "ready"}, silent_s=30.0)
    assert line(RUN, Snapshot(tuple(views)), full=full).count("evaluator 0") == 1


def test_a_run_that_trains_does_not_start_because_its_evaluator_does() -> None:
    views = (*snapshot().services, ServiceView("evaluator 0", "evaluator"))
    assert line(RUN, Snapshot(views)) == line(RUN, snapshot())
    begins = snapshot(learner=LEARNER | {"agent_steps_per_s": 0.0}, broker={"memory_bytes": 1}).services
    assert line(RUN, Snapshot(begins)).endswith("| starting")


def test_a_run_that_is_trained_is_evaluated_only_if_there_is_an_evaluator() -> None:
    learner = ServiceView("learner 0", "learner", LEARNER, code=0)
    assert line(RUN, Snapshot((learner,))) == "trained"
    evaluator = ServiceView("evaluator 0", "evaluator")
    assert line(RUN, Snapshot((learner, evaluator))) == "trained, the last policies are evaluated"


def test_a_line_says_in_a_sentence_why_nothing_is_learned() -> None:
    assert line(RUN, snapshot(learner=LEARNER | {"replay_fill": 0.2})).endswith("before the first update")


def test_what_limits_a_run_is_shown_until_it_is_stopped() -> None:
    assert "environment-bound: " in text_of(screen(RUN, snapshot()))
    assert "-bound" not in text_of(screen(RUN, snapshot(), stopping=True))
    assert "-bound" not in line(RUN, snapshot(), stopping=True)


def test_a_line_has_no_figures_before_the_learner_has_any() -> None:
    assert line(RUN, snapshot(learner={}, broker={})) == "starting"


def test_without_colour_nothing_but_text_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(width=80, force_terminal=True, color_system="truecolor", file=io.StringIO())
    console.print(screen(RUN, snapshot("actor 0: WARNING slow")))
    codes = set(re.findall(r"\x1b\[([0-9;]*)m", console.file.getvalue()))
    assert codes <= {"0", "1", "2"}, "only bold and dim"


@pytest.mark.parametrize(
    ("view", "state"),
    [
        (ServiceView("a", "actor"), "starting"),
        (ServiceView("a", "actor", {"state": "draining"}), "draining"),
        (ServiceView("a", "actor", {"state": "ready"}, silent_s=60), "no answer"),
        (ServiceView("a", "actor", {"state": "ready", "loop_age_s": 60}), "stuck"),
        (ServiceView("a", "actor", {"state": "ready", "loop_age_s": 0.1}), "ready"),
        (ServiceView("a", "actor", {"state": "ready"}, code=0), "ended"),
        (ServiceView("a", "actor", {"state": "ready"}, code=-9), "ended (-9)"),
    ],
)
def test_the_state_of_a_service_in_a_word(view: ServiceView, state: str) -> None:
    assert figures.state(view) == state


@pytest.mark.parametrize(
    ("values", "blocks"),
    [
        ([], ""),
        ([5], "▁"),
        ([5, 5], "▁▁"),
        ([0, 7], "▁█"),
        (list(range(8)), "▁▂▃▄▅▆▇█"),
        ([None, 1, math.nan, 2], "▁█"),
    ],
)
def test_a_sparkline_spans_the_range_of_its_values(values: list[Any], blocks: str) -> None:
    assert figures.sparkline(values) == blocks


def test_a_long_history_keeps_its_newest_values() -> None:
    assert figures.sparkline([100, *range(8)], width=8) == "▁▂▃▄▅▆▇█"


def test_times_and_sizes_read_well() -> None:
    assert [figures.duration(s) for s in (None, 0, 59.9, 3725, 90_061)] == [
        "-",
        "0:00:00",
        "0:00:59",
        "1:02:05",
        "1d 01:01:01",
    ]
    assert [figures.size(n) for n in (None, 5 << 20, 3 << 29)] == ["-", "5 MB", "1.5 GB"]


def test_the_eta_needs_a_rate_and_never_is_negative() -> None:
    assert figures.eta_s(100, {"agent_steps": 50, "agent_steps_per_s": 10}) == 5
    assert figures.eta_s(100, {"agent_steps": 150, "agent_steps_per_s": 10}) == 0
    assert figures.eta_s(100, {"agent_steps": 50, "agent_steps_per_s": 0}) is None


def test_the_summary_has_steps_and_return() -> None:
    assert summary(RUN, LEARNER | {"agent_steps": 10_000_000}, 60, finished=True).endswith(
        "trained 10,000,000 agent steps, mean return of the last 100 episodes -3.46, in 0:01:00"
    )
    young = summary(RUN, {"agent_steps": 9, "episodes": 20, "mean_return_100": 1.0}, 1, finished=False)
    assert "mean return of the last 20 episodes 1.00" in young
    assert "stopped after - agent steps, no episode ended yet" in summary(RUN, {}, 1, finished=False)
