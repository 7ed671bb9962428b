"""When a service stalls, i.e. gets nothing done although it has work. Time is a plain number."""

from hypothesis import given
from hypothesis import strategies as st

from zerobeast.common.health.progress import Progress


def note(
    progress: Progress, now: float, done: int, *, idle: bool = False, awake_since: float = 0.0, **refused: int
) -> None:
    progress.note([done], idle=idle, refused=refused, now=now, awake_since=awake_since)


def test_work_left_undone_stalls_a_service_and_progress_ends_the_stall() -> None:
    progress = Progress(100.0)
    note(progress, 100.0, 5)
    note(progress, 170.0, 5)
    assert progress.page(170.0) == {"progress_age_s": 70.0, "stalled_s": 70.0, "refused_since_progress": {}}
    note(progress, 171.0, 6)
    assert progress.page(172.0) == {"progress_age_s": 1.0, "stalled_s": 1.0, "refused_since_progress": {}}
    note(progress, 3771.0, 6, awake_since=3770.0)
    assert progress.page(3771.0)["stalled_s"] == 1.0, "the machine was stopped"


def test_a_service_with_nothing_to_do_does_not_stall_and_refusals_count_from_the_last_progress_on() -> None:
    progress = Progress(0.0)
    note(progress, 1.0, 1, payload=2)
    note(progress, 2.0, 2, payload=3)
    note(progress, 99.0, 2, idle=True, payload=7, terms=1)
    refused = {"payload": 4, "terms": 1}
    assert progress.page(99.0) == {"progress_age_s": 97.0, "stalled_s": 0.0, "refused_since_progress": refused}
    note(progress, 130.0, 2, payload=7, terms=1)
    assert progress.page(130.0)["stalled_s"] == 31.0
    note(progress, 131.0, 3, payload=7, terms=1)
    assert progress.page(131.0)["refused_since_progress"] == {}


@given(st.lists(st.tuples(st.floats(0.0, 9.0), st.integers(0, 2), st.booleans()), max_size=30))
def test_a_stall_is_no_longer_than_the_time_without_progress(turns: list[tuple[float, int, bool]]) -> None:
    progress, now, done = Progress(0.0), 0.0, 0
    for seconds, more, idle in turns:
        now, done = now + seconds, done + more
        note(progress, now, done, idle=idle)
        page = progress.page(now)
        assert 0.0 <= page["stalled_s"] <= page["progress_age_s"]
        assert not idle or page["stalled_s"] == 0.0
