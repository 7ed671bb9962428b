"""Hostile peers on every plane while a real run trains: 20,000 messages, and every attack twice."""

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

MESSAGES = 20_000


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


def test_growth_beyond_its_limit_is_a_failure() -> None:
    before = ProcessUsage(100 << 20, 20, 1000)
    assert list(judge_growth("x", before, before)) == []
    assert list(judge_growth("x", before, ProcessUsage(164 << 20, 28, 263_144))) == []
    assert len(list(judge_growth("x", before, ProcessUsage(165 << 20, 29, 263_145)))) == 3


def test_an_unknown_reason_is_a_failure() -> None:
    page = {"refused": 3, "refused_by_reason": {"header": 1, "mine": 1}}
    child = SimpleNamespace(spec=SimpleNamespace(name="broker 0"), poll=lambda: None, page=lambda: page)
    found = list(judge_page(child))  # type: ignore[arg-type]
    assert "made up reasons: ['mine']" in found[0]
    assert "refused is 3, its reasons sum to 2" in found[1]


def test_harm_to_the_run_is_a_failure() -> None:
    honest = {"refused": 0, "moves": 0}
    assert list(judge_actor(honest, honest)) == []
    assert list(judge_actor(honest, {"refused": 1, "moves": 0})) == ["the honest actor: refused was 0 and is 1"]
    calm = SimpleNamespace(loop_age_s={"x": 20.0}, silence_s={"x": 30.0})
    assert list(judge_answers(calm)) == []  # type: ignore[arg-type]
    stuck = SimpleNamespace(loop_age_s={"x": 20.1}, silence_s={"x": 30.1})
    assert list(judge_answers(stuck)) == [  # type: ignore[arg-type]
        "x: its loop did not turn for 20.1 s",
        "x: no health page for 30.1 s",
    ]


def test_the_command_writes_what_it_observed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    seen = {
        "messages": 7,
        "seconds": 2.0,
        "updates": 3,
        "attacks": {"noise": 6},
        "table": [{"plane": "weights", "service": "broker 1"}, {"plane": "steps", "service": "envserver 0"}],
        "failures": ["x: it has ended"],
    }
    monkeypatch.setattr(
        "zerobeast.tools.chaos.fuzz.run", lambda messages, seed: seen | {"seed": seed, "asked": messages}
    )
    file = tmp_path / "result.json"
    assert main(["chaos", "fuzz", "--messages", "5000", "--seed", "4", "--out", str(file)]) == 1
    written = json.loads(file.read_text())
    assert (written["asked"], written["seed"]) == (5000, 4)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("7 messages of seed 4 in 2 s (4/s), and 6 attacks; 3 updates meanwhile")
    assert lines[4:6] == ["| weights | broker 1 |", "| steps | envserver 0 |"]
    assert lines[-1] == "FAILED x: it has ended"
