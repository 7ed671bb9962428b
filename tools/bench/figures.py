"""What the benchmarks of the planes found, in one form: a figure beside its yardstick, their ratio and the goal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple


class Goal(NamedTuple):
    """A bound that a figure should keep."""

    sign: Literal["<=", ">="]
    bound: float
    of_ratio: bool = False  #: the ratio to the yardstick is bounded, not the figure itself

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:,g}{' x' if self.of_ratio else ''}"

    def met(self, value: float, ratio: float | None) -> bool | None:
        """Whether it is kept; None where there is no ratio to judge by."""
        judged = ratio if self.of_ratio else value
        if judged is None:
            return None
        return judged <= self.bound if self.sign == "<=" else judged >= self.bound


class Figure(NamedTuple):
    """One number of a report, and what to hold against it."""

    what: str
    value: float
    unit: str
    yardstick: float | None  #: the same without this project, in the same run and unit; None where there is none
    ratio: float | None  #: value / yardstick
    goal: str
    met: bool | None  #: None where it cannot be told


def figure(what: str, value: float, unit: str, goal: Goal, yardstick: float | None = None) -> Figure:
    """Judge a number."""
    ratio = None if yardstick is None else value / yardstick
    return Figure(what, value, unit, yardstick, ratio, str(goal), goal.met(value, ratio))


HEADINGS = ("", "figure", "yardstick", "", "ratio", "goal", "")
VERDICTS = {True: "met", False: "missed", None: "not known"}


def table(figures: Sequence[Figure]) -> str:
    """Figures as lines of text, side by side with what they are held against."""
    rows = [HEADINGS, *map(_cells, figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    return "\n".join(_line(row, widths) for row in rows)


def _cells(figure: Figure) -> tuple[str, ...]:
    value, yardstick, ratio = map(_number, (figure.value, figure.yardstick, figure.ratio))
    return figure.what, value, yardstick, figure.unit, ratio, figure.goal, VERDICTS[figure.met]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    what, value, yardstick, unit, ratio, goal, verdict = (
        cell.rjust(width) if column in (1, 2, 4) else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return f"{what}  {value}  {yardstick}  {unit}  {ratio}   {goal}  {verdict}".rstrip()


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
