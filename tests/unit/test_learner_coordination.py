"""What follows from the votes of a learner's ranks."""

from pathlib import Path
from typing import Any

import pytest

from tests.build.errors import refuses
from zerobeast.common.config.process import Instance
from zerobeast.common.errors import ConfigError, PeerLost
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.transport import Keys, make_keys
from zerobeast.services.learner import coordination
from zerobeast.services.learner.coordination import CHECKPOINT, ROW, Act, Agreement, Rank, Vote, decide
from zerobeast.services.learner.ledger import Ledger, SavedLedger, StreamLedger

DUE, ROWS, ENDS = Vote(due=1, env=7), Vote(rows=4, env=7), Vote(ends=1, env=7)


@pytest.mark.parametrize(
    ("votes", "act"),
    [
        ([Vote()], None),
        ([DUE], Act.STEP),
        ([DUE, ROWS], None),  # the first one has to offer rows as well
        ([DUE._replace(rows=4), ROWS], Act.ADD),
        ([ROWS, Vote()], None),
        ([DUE, ENDS], Act.END),  # no more rows will come, without which the second one never is due
        ([DUE, DUE._replace(stops=1)], Act.STOP),
        ([DUE._replace(shares=ROW), DUE], Act.SHARE),
        ([Vote(recovered=20), Vote()], Act.COUNT),
    ],
)
def test_all_ranks_do_what_follows_from_all_votes(votes: list[Vote], act: Act | None) -> None:
    assert decide(votes) == act


def test_ranks_whose_actors_play_other_environments_end_and_may_be_started_again() -> None:
    with pytest.raises(PeerLost):
        decide([ROWS, Vote(), ROWS._replace(env=8)])


def test_what_is_agreed_is_of_all_ranks() -> None:
    agreed = Agreement(Act.ADD, [ROWS, ROWS._replace(rows=2, shares=CHECKPOINT, recovered=5)])
    assert (agreed.rows, agreed.shares, agreed.recovered) == (2, CHECKPOINT, 5)


def test_the_ledgers_of_ranks_add_up_and_each_stream_is_as_far_as_on_its_own_rank() -> None:
    streams = {(1, 0): StreamLedger(4, consumed=9), (2, 0): StreamLedger(4, consumed=3)}
    others = {(2, 0): StreamLedger(4, consumed=3, begun=1), (3, 0): StreamLedger(4, consumed=1)}
    first, second = SavedLedger(Ledger(used=5, stale=1), streams), SavedLedger(Ledger(used=2), others)
    joined = first.merge(second)
    assert joined.ledger == Ledger(used=7, stale=1)
    reached = {key: (stream.consumed, stream.begun) for key, stream in joined.streams.items()}
    assert reached == {(1, 0): (9, 0), (2, 0): (3, 1), (3, 0): (1, 0)}


@pytest.mark.parametrize(
    ("meeting", "environ", "host"),
    [
        ("tcp://10.0.0.1:29500", {}, "10.0.0.1"),
        ("tcp://[2001:db8::1]:29500", {}, "[2001:db8::1]"),
        ("", {"MASTER_ADDR": "2001:db8::1", "MASTER_PORT": "29500"}, "[2001:db8::1]"),
    ],
)
def test_ranks_meet_beyond_loopback_only_with_keys_or_the_flag_insecure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meeting: str, environ: dict[str, str], host: str
) -> None:
    met: list[tuple[str, bytes]] = []
    monkeypatch.setattr(coordination, "join", lambda *given: met.append((given[2], given[5])))
    make_keys(tmp_path)

    def join(**security: Any) -> None:
        learner = {"ranks": 2, "rank_endpoints": "tcp://10.0.0.2:5560", "meeting": meeting}
        config = RunConfig.model_validate({"learner": learner, "security": security})
        Rank(0, "").join(config, "cpu", lambda: False, environ)

    with pytest.raises(ConfigError):
        join()
    join(insecure=True)
    join(keys=str(tmp_path))
    assert met == [(f"tcp://{host}:29500", b""), (f"tcp://{host}:29500", Keys(str(tmp_path), "learner").secret)]


def test_a_rank_has_a_number_below_that_of_all_and_a_place_to_meet() -> None:
    config = RunConfig.model_validate({"learner": {"ranks": 2, "rank_endpoints": "ipc:///tmp/a"}})
    with refuses("index", value="2"):
        Rank.of(config, Instance(index=2), {})
    with refuses():
        Rank.of(config, Instance(), {"RANK": "1"}).join(config, "cpu", lambda: False, {})
