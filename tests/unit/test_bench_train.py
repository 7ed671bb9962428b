"""`bench train`: a rate and CPU seconds from two moments of a run's health pages."""

import pytest

from zerobeast.tools.bench.train import watch


class TwoMoments:
    """Stands for a run: a learner in a long update, and two actors, the first of which does not answer at first."""

    def __init__(self) -> None:
        self._counts = iter(
            [
                {"pid": 1, "agent_steps": 2048, "uptime_s": 10.0, "cpu_s": 8.0},
                {"pid": 1, "agent_steps": 6144, "uptime_s": 18.0, "cpu_s": 15.0},
            ]
        )
        self._learner: dict[str, float] = {}
        self._moment = 0

    def next_count(self) -> dict[str, float]:
        self._moment += 1
        self._learner = next(self._counts)
        return self._learner

    def pages(self, role: str) -> list[dict[str, float]]:
        if role == "learner":
            return [self._learner]
        if role != "actor":
            return []
        actors = [{"pid": pid, "uptime_s": 9.0 * self._moment, "cpu_s": pid * self._moment} for pid in (90, 9)]
        return actors[1:] if self._moment == 1 else actors

    def check(self) -> None:
        pass


def test_a_rate_is_that_of_the_learners_own_clock_and_services_are_those_of_both_moments() -> None:
    seen = watch(TwoMoments(), 0.0)  # type: ignore[arg-type]
    assert seen.rate == 4096 / 8
    assert seen.seconds == 8.0
    assert seen.cpu_s == {"learner": 7 / 8, "actor": pytest.approx(1.0), "broker": 0, "envserver": 0}
