"""When each rule takes newer weights."""

import math
from typing import Any

import pytest

from tests.build.errors import refuses
from zerobeast.common.config.load import load_config
from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.settings.sync_rule import Rule
from zerobeast.common.wire.messages import Header, Kind
from zerobeast.rl.acting.sync import SILENCE_S, Sync

ME, LEARNER = 7, 5


def news(version: int, *entries: Any, epoch: int = LEARNER) -> Header:
    return Header(Kind.NEWS, 0, epoch=epoch, seq=version, body=(version, list(entries), 100 * version))


def acting(rule: str, *, publish_every: int = 1) -> Sync:
    """A process that took version 0, of a hundred bytes, at time 0."""
    sync = Sync(Rule.parse(rule), ME, publish_every)
    assert sync.wants(0.0), "without weights nothing can act"
    sync.note_taken(LEARNER, 0, 100, 0.0)
    return sync


def wants(sync: Sync, version: int, *entries: Any, at: float = 1.0, epoch: int = LEARNER) -> bool:
    """Whether it takes weights after such news."""
    sync.note_news(news(version, *entries, epoch=epoch), at)
    return sync.wants(at)


def test_the_steps_of_the_run_come_with_the_news_whatever_weights_act() -> None:
    sync = acting("never")
    assert sync.agent_steps == 0
    assert (wants(sync, 3), sync.agent_steps) == (False, 300)
    sync.note_news(Header(Kind.NEWS, 0, epoch=LEARNER, seq=4, body=(4, [], None)), 2.0)
    assert sync.agent_steps == 0, "from a learner that does not send them"
    assert not wants(sync, 1000, at=math.inf)
    assert wants(sync, 5, epoch=LEARNER + 1), "one version of each learner is taken"
    assert sync.agent_steps == 0, "another learner may have gone back to a checkpoint"


@pytest.mark.parametrize(
    ("rule", "flags"),
    [
        *((rule, []) for rule in ("", "every 0", "every 1.5", "every 0 s", "every 3 m", "adaptive nan", "never 1")),
        ("every 5", ["--deterministic", "true"]),
    ],
)
def test_an_invalid_rule_is_refused_and_one_that_needs_news_in_a_deterministic_run(rule: str, flags: list[str]) -> None:
    with refuses("sync.rule", value=rule):
        load_config(["--sync.rule", rule, *flags], {})


def test_every_n_counts_published_versions() -> None:
    sync = acting("every 3", publish_every=2)
    assert [wants(sync, version) for version in (0, 2, 4, 6, 8)] == [False, False, False, True, True]
    sync.note_taken(LEARNER, 8, 100, 1.0)
    assert not sync.wants(1.0)
    found = {"syncs": 2, "sync_bytes": 200, "sync_bytes_saved": 300}  # versions 2, 4 and 6
    assert sync.page() == {**found, "versions_behind": 0, "divergence": None}


def test_every_t_seconds_takes_what_is_newer_then() -> None:
    sync = acting("every 10 s")
    assert not wants(sync, 0, at=11.0), "there is nothing newer"
    assert wants(sync, 1, at=11.0)
    sync.note_taken(LEARNER, 1, 100, 11.0)
    assert not wants(sync, 2, at=20.9)
    assert sync.wants(21.0)


def test_a_threshold_is_compared_with_the_divergence_of_the_weights_that_act() -> None:
    sync = acting("adaptive 0.5")
    assert not wants(sync, 3, [ME, 0, 0.5], [8, 0, 9.0]), "0.5 is not above 0.5, and 8 is another process"
    assert wants(sync, 4, [ME, 0, 0.6])
    sync.note_taken(LEARNER, 4, 100, 1.0)
    assert not sync.wants(1.0)
    assert not wants(sync, 5, [ME, 0, 0.9]), "rollouts of version 0 were still under way"
    assert wants(sync, 5, [ME, 4, 0.9])


def test_a_measurement_of_a_killed_learners_weights_is_no_reason_to_keep_them() -> None:
    sync = acting("adaptive 0.5")
    for version, epoch in ((118, LEARNER), (100, 6)):
        sync.note_news(news(version, [ME, version, 0.1], epoch=epoch), 1.0)
        sync.note_taken(epoch, version, 100, 1.0)
    assert wants(sync, 101, [ME, 118, 0.1], epoch=6)
    sync.note_taken(6, 119, 100, 1.0)
    assert not wants(sync, 120, [ME, 119, 0.1], epoch=6)


@pytest.mark.parametrize("rule", ["every 3", "every 1e6 s", "adaptive 9"])
def test_without_news_for_long_any_version_is_taken(rule: str) -> None:
    sync = acting(rule)
    assert not wants(sync, 0, at=5.0)
    assert not sync.wants(5.0 + SILENCE_S)
    assert sync.wants(5.1 + SILENCE_S)


@pytest.mark.parametrize("entry", [5, [1, 2], [1, 2, 3], [1, 2, math.nan], [-1, 2, 0.5], [True, 2, 0.5], ["1", 2, 0.5]])
def test_malformed_news_are_refused(entry: Any) -> None:
    with refuses(kind=RemoteProtocolError, reason="header"):
        acting("adaptive 1").note_news(Header(Kind.NEWS, 0, epoch=1, body=(1, [entry], None)), 1.0)
