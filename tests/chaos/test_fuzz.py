"""Hostile peers on every plane while a real run trains: thousands of messages, and every attack twice."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from zerobeast.cli.main import main
from zerobeast.common.errors import Refusal
from zerobeast.tools.chaos.fuzz import judge_actor, judge_answers, judge_growth, judge_page, run
from zerobeast.tools.chaos.fuzz_attacks import ATTACKS
from zerobeast.tools.chaos.fuzzed_run import ProcessUsage

MESSAGES = 10_000


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return run(MESSAGES, seed=1)


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


def test_messages_are_refused_by_the_service_that_they_belong_to(result: dict[str, Any]) -> None:
    refused = result["refused"]
    assert refused["envserver 0"]["action"]
    assert refused["learner 0"]["values"]
    assert refused["learner 0"]["episodes"]
    assert refused["broker 1"]["layout"]
    assert refused["broker 2"].keys() == {"header", "version", "kind", "payload"}
    assert refused["actor 0"] == {}, "no peer can reach an actor"


def test_growth_made_up_reasons_and_harm_to_the_run_are_failures() -> None:
    before = ProcessUsage(100 << 20, 20, 1000)
    assert list(judge_growth("x", before, ProcessUsage(164 << 20, 28, 263_144))) == []
    assert len(list(judge_growth("x", before, ProcessUsage(165 << 20, 29, 263_145)))) == 3
    page = {"refused": 3, "refused_by_reason": {"header": 1, "mine": 1}}
    child: Any = SimpleNamespace(spec=SimpleNamespace(name="broker 0"), poll=lambda: None, page=lambda: page)
    assert len(list(judge_page(child))) == 2, "the reason, and the sum"
    honest = {"refused": 0, "moves": 0}
    assert len(list(judge_actor(honest, honest))) == 0
    assert len(list(judge_actor(honest, {"refused": 1, "moves": 0}))) == 1
    for age, silence, found in ((20.0, 30.0, 0), (20.1, 30.1, 2)):
        answers: Any = SimpleNamespace(loop_age_s={"x": age}, silence_s={"x": silence})
        assert len(list(judge_answers(answers))) == found


def test_the_command_writes_what_it_observed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = {"messages": 7, "seconds": 2.0, "updates": 3, "attacks": {}, "table": [], "failures": ["x: it has ended"]}
    monkeypatch.setattr("zerobeast.tools.chaos.fuzz.run", lambda messages, seed: seen | {"seed": seed})
    file = tmp_path / "result.json"
    assert main(["chaos", "fuzz", "--messages", "5000", "--seed", "4", "--out", str(file)]) == 1
    assert json.loads(file.read_text())["seed"] == 4
