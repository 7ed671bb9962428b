"""Results of benchmarks in one form: a figure beside its yardstick, their ratio and the goal."""

import time
from collections.abc import Callable, Collection, Sequence
from typing import Literal, NamedTuple


class Goal(NamedTuple):
    """A bound that a figure should keep."""

    sign: Literal["<=", ">="]
    bound: float
    of_ratio: bool = False  #: the ratio to the yardstick is bounded, not the figure itself

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:,g}{' x' if self.of_ratio else ''}"

    def is_met(self, value: float, ratio: float | None) -> bool | None:
        """Whether the goal is met; None if there is no ratio to judge by."""
        judged = ratio if self.of_ratio else value
        if judged is None:
            return None
        return judged <= self.bound if self.sign == "<=" else judged >= self.bound


class Figure(NamedTuple):
    """One number of a report, and what it is compared with."""

    what: str
    value: float
    unit: str
    yardstick: float | None  #: the same quantity without this project, in the same run and unit; None if there is none
    ratio: float | None  #: value / yardstick
    goal: str  #: empty if there is none
    met: bool | None  #: None if it cannot be judged


def figure(what: str, value: float, unit: str, goal: Goal | None = None, yardstick: float | None = None) -> Figure:
    """Judge a number."""
    ratio = None if yardstick is None else value / yardstick
    return Figure(what, value, unit, yardstick, ratio, str(goal or ""), goal.is_met(value, ratio) if goal else None)


def per_second(work: Callable[[], int], seconds: float) -> float:
    """Work done per second by repeated calls of `work`, which returns how much it did; the first call is a warm-up."""
    work()
    count, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        count += work()
    return count / spent


STEPS_S = "agent steps/s"
HEADINGS = ("", "figure", "yardstick", "", "ratio", "goal", "")
VERDICTS = {True: "met", False: "missed", None: "not known"}


def table(figures: Sequence[Figure]) -> str:
    """Format figures as lines of text, each beside its yardstick and goal."""
    return "\n".join(align_cells([HEADINGS, *map(_cells, figures)], numbers=(1, 2, 4)))


def align_cells(rows: Sequence[Sequence[str]], numbers: Collection[int]) -> list[str]:
    """Rows as lines of text: the columns in `numbers` are right-aligned, the others left-aligned."""
    sides = [">" if column in numbers else "<" for column in range(len(rows[0]))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = ([f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)] for row in rows)
    return ["  ".join(row).rstrip() for row in cells]


def _cells(figure: Figure) -> tuple[str, ...]:
    value, yardstick, ratio = map(_number, (figure.value, figure.yardstick, figure.ratio))
    return figure.what, value, yardstick, figure.unit, ratio, figure.goal, VERDICTS[figure.met] if figure.goal else ""


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
