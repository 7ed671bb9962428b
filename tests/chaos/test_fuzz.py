"""Hostile peers on every plane while a real run trains: thousands of messages, and every attack twice."""

from typing import Any, get_args

import pytest

from zerobeast.common.errors import Refusal
from zerobeast_tools.chaos.fuzz import attack_run
from zerobeast_tools.chaos.fuzz_attacks import ATTACKS

MESSAGES = 10_000


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return attack_run(MESSAGES, seed=1)


def test_nothing_ends_hangs_grows_unpickles_or_is_miscounted(result: dict[str, Any]) -> None:
    assert result["failures"] == []


def test_as_many_messages_were_sent_as_reported_and_on_every_plane(result: dict[str, Any]) -> None:
    sent = result["sent"]
    assert sum(sum(kinds.values()) for kinds in sent.values()) == result["messages"] >= 0.99 * MESSAGES
    for server in ("envserver 0", "broker 0", "learner 0"):
        assert sent[server].keys() == {"strangers", "mutants", "visitors"}
    assert [sent[f"broker {n}"].keys() for n in (1, 2)] == [{"forged"}, {"forged news"}]
    assert result["attacks"] == {attack.__name__: 3 * 2 for attack in ATTACKS}, "on three planes, in two rounds"


def test_every_reason_that_a_peer_can_cause_was_counted(result: dict[str, Any]) -> None:
    found = {reason for reasons in result["refused"].values() for reason in reasons}
    caused_otherwise = {
        "environment",  # from an env-server that lacks the one it is asked for
        "busy",  # from a server that is full
        "order",  # a STEP before RESET
        "overlap",  # a request while the last one is computed
        "window",  # too many rollouts of one stream waiting at the learner
        "slot",  # only refused by actors, in replies of their servers
        "sender",  # only with keys
        "key",  # only with keys
    }
    assert found >= set(get_args(Refusal)) - caused_otherwise
