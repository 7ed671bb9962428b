"""`beast bench`: its commands, and how a figure is judged and shown."""

from importlib import import_module

import pytest

from zerobeast.common.errors import ConfigError
from zerobeast.tools import bench
from zerobeast.tools.bench import all as report
from zerobeast.tools.bench import steps
from zerobeast.tools.bench.figures import Goal, figure, table
from zerobeast.tools.bench.profile import part_of


def test_every_command_exists_and_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--help"]) == 0
    text = capsys.readouterr().out
    for name, meaning in bench.COMMANDS.items():
        assert f"beast bench {name}" in text
        assert meaning in text
        assert callable(import_module(f"zerobeast.tools.bench.{name}").main)
    assert max(map(len, text.splitlines())) <= 120


def test_an_unknown_command_is_named_beside_those_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["setps"]) == 2
    assert "unknown command 'setps'; did you mean steps?" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_a_measurement_without_a_positive_finite_duration_is_refused(seconds: str) -> None:
    with pytest.raises(ConfigError, match="--seconds"):
        bench.main(["steps", "--seconds", seconds])


@pytest.mark.parametrize(
    ("goal", "value", "yardstick", "met"),
    [
        (Goal("<=", 60), 60.0, None, True),
        (Goal("<=", 60), 61.0, None, False),
        (Goal(">=", 100_000), 99_999.0, None, False),
        (Goal("<=", 6, of_ratio=True), 60.0, 10.0, True),
        (Goal(">=", 0.35, of_ratio=True), 3.0, 10.0, False),
        (Goal("<=", 6, of_ratio=True), 1.0, None, None),
    ],
)
def test_a_figure_is_judged_by_its_goal(goal: Goal, value: float, yardstick: float | None, met: bool | None) -> None:
    assert figure("it", value, "us", goal, yardstick).met is met


@pytest.mark.parametrize(
    ("code", "part"),
    [
        ("libtorch_cpu.so", "tensors"),
        ("[JIT] tid 7", "tensors"),
        ("_ale_py.cpython-311-x86_64-linux-gnu.so", "emulator"),
        ("[kernel.kallsyms]", "kernel"),
        ("libzmq-9cd9a3e1.so.5.2.5", "ZeroMQ"),
        ("libc.so.6", "libc: copies"),
        ("python3.11", "Python"),
        ("_multiarray_umath.cpython-311-x86_64-linux-gnu.so", "Python"),
    ],
)
def test_a_profile_assigns_code_to_its_part(code: str, part: str) -> None:
    assert part_of(code) == part


def test_a_table_shows_figure_yardstick_ratio_and_goal_side_by_side() -> None:
    text = table(
        [
            figure("fast", 123_456.0, "steps/s", Goal(">=", 100_000)),
            figure("close", 50.0, "us", Goal("<=", 6, of_ratio=True), yardstick=10.0),
            figure("alone", 50.0, "us", Goal("<=", 6, of_ratio=True)),
        ]
    )
    heading, *lines = (line.split() for line in text.splitlines())
    assert heading == ["figure", "yardstick", "ratio", "goal"]
    assert lines == [
        ["fast", "123,456", "-", "steps/s", "-", ">=", "100,000", "met"],
        ["close", "50", "10", "us", "5", "<=", "6", "x", "met"],
        ["alone", "50", "-", "us", "-", "<=", "6", "x", "not", "known"],
    ]


def test_without_a_compiler_a_round_trip_has_no_yardstick(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("zerobeast.tools.bench.steps.shutil.which", lambda _name: None)
    assert steps.pingpong_us(100, 100, 0.1) is None
    monkeypatch.setattr(steps, "_round_trip_us", lambda _seconds: 50.0)
    assert steps.main([]) == 0
    text = capsys.readouterr().out
    assert steps.NO_COMPILER in text
    assert "not known" in text


def test_the_report_runs_its_commands_and_names_those_that_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {command.split()[0] for command in report.COMMANDS} == {*bench.COMMANDS} - {
        "all",
        "compare",
        "episodic",
        "limit",
        "profile",
        "stale",
    }
    steps = [figure("round trip", 50.0, "us", Goal("<=", 6, of_ratio=True), 10.0)._asdict()]
    monkeypatch.setattr(report, "_run", lambda argv: {"figures": steps} if argv == "steps" else None)
    assert report.main(["--short"]) == 1
    text = capsys.readouterr().out
    assert "round trip" in text
    assert "beast bench weights: failed" in text
    assert "beast bench memory" not in text
