"""Several ranks learn as one process does that has the whole batch, and a rank that is missing or wrong is named."""

import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.build.partner import CALLS, meet
from tests.build.ranks import FOUR, NAN_AT, ROWS, SETTINGS, learning_of
from tests.helpers import ROOT, free_port, killed_at_last, python, wait_for_end
from zerobeast.common.errors import ConfigError, PeerLost
from zerobeast.rl.ops import listeners, meeting, ranks
from zerobeast.services.learner.coordination import Act

UPDATES = 8
Found = dict[tuple[int, int], dict[str, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    asked = (ROOT / "tests" / "build" / "ranks.py", folder, str(UPDATES))
    code, _, error = wait_for_end(python(*asked, variables={"OMP_NUM_THREADS": "1"}))
    assert code == 0, error
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> Found:
    return {(size, rank): torch.load(folder / f"{size}-{rank}.pt") for size in (1, 2, 4) for rank in range(size)}


@pytest.mark.parametrize(("name", "size"), [*((name, 2) for name in SETTINGS), (FOUR, 4)])
def test_losses_and_weights_are_those_of_one_process_with_the_whole_batch(found: Found, name: str, size: int) -> None:
    whole, first = found[1, 0][name], found[size, 0][name]
    torch.testing.assert_close(first["losses"], whole["losses"], rtol=1e-4, atol=1e-4, equal_nan=True)
    torch.testing.assert_close(first["net"], whole["net"], rtol=1e-3, atol=1e-4)
    for rank in range(1, size):
        torch.testing.assert_close(found[size, rank][name], first, rtol=0, atol=0, equal_nan=True)


def test_what_is_compared_learns_skips_and_stops_early(found: Found) -> None:
    steps = {name: found[1, 0][name]["losses"][:, 1] for name in SETTINGS}
    assert len(set(steps["ppo turns"].tolist())) > 1
    assert (steps["impala sum"] == 0).nonzero().flatten().tolist() == [NAN_AT]
    assert all((steps[name] > 0).all() for name in SETTINGS if name != "impala sum")


def test_ranks_with_fewer_rollouts_than_minibatches_take_as_many_steps_as_the_others(found: Found) -> None:
    first, other = (found[2, rank]["uneven"] for rank in range(2))
    assert set(first["steps"]) == {4}
    torch.testing.assert_close(other, first, rtol=0, atol=0)


def test_each_rank_stores_and_draws_its_share(folder: Path, found: Found) -> None:
    own = [found[2, rank]["replay"] for rank in range(2)]
    for one in own:
        torch.testing.assert_close(one["norm"], found[1, 0]["replay"]["norm"])
        assert one["transitions"] == ROWS // 2
    weights, chances = (torch.cat([one[name] for one in own]).double() for name in ("weights", "chances"))
    torch.testing.assert_close(weights, chances.min() / chances)
    files = (path for path in (folder / "2" / "sac-replay").rglob("*") if path.is_file())
    assert {path.parent.name for path in files} == {"store", "rank-1"}


@pytest.mark.parametrize(("name", "settings"), [("ppo", {"minibatches": 13}), ("sac", {"batch_size": 7})])
def test_what_ranks_cannot_share_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr(ranks.GROUP, "size", 2)  # as if they had met
    with pytest.raises(ConfigError, match=next(iter(settings))):
        learning_of(name, tmp_path, **settings)


def joining(place: str, *numbers: int, size: int = 2) -> Iterator[BaseException]:
    """How each of these ranks fails, which are not all; they begin in order."""
    with ThreadPoolExecutor() as pool:
        tries = [pool.submit(meeting.join, number, size, place, 1.0, {"version": "1"}) for number in numbers]
    return (error for each in tries if (error := each.exception()))


@pytest.mark.parametrize("number", [0, 1])
def test_a_number_that_comes_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(meeting, "LOOK_S", 0.05)
    errors = list(joining(f"file://{tmp_path}/meeting", 0, number, number, size=3))
    assert all(isinstance(error, PeerLost) for error in errors)
    assert any("another" in str(error) for error in errors)


@pytest.mark.parametrize("link", [False, True])
def test_a_meeting_place_that_is_something_else_is_left_alone(tmp_path: Path, *, link: bool) -> None:
    notes, place = tmp_path / "notes", tmp_path / "place" if link else tmp_path / "notes"
    notes.write_text("a text of the user's")
    if link:
        place.symlink_to(notes)
    (error,) = joining(f"file://{place}", 0)
    assert isinstance(error, ConfigError)
    assert notes.read_text() == "a text of the user's"


def met(folder: Path, name: str) -> list[Any]:
    """What came of the meeting of two ranks."""
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(2)]


def test_ranks_do_not_begin_while_others_are_connected_to_what_gloo_listens_at(folder: Path) -> None:
    assert "2 connections" in str(met(folder, "knock"))


def test_a_port_that_cannot_be_closed_to_others_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listeners, "_ATTACH_FILTER", 9999)
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert listeners.close_to_others(server.fileno()) == 0
        assert f"127.0.0.1:{server.getsockname()[1]} stays open to others" in caplog.text


@pytest.mark.parametrize(("name", "host"), [("tcp", "127.0.0.1"), ("six", "::1")])
def test_ranks_listen_where_they_were_told_and_only_until_all_are_there(folder: Path, name: str, host: str) -> None:
    first, other = met(folder, name)
    assert (len(first), len(other)) == (2, 1), "the store is in the process of rank 0"
    assert {place for place, _ in first} <= {host, "127.0.0.1"}
    assert not any(opens for _, opens in [*first, *other])


def test_ranks_that_were_killed_meet_again_at_the_same_file(folder: Path) -> None:
    assert met(folder, "killed") == met(folder, "again") == [[["127.0.0.1", False]]] * 2


def test_a_port_in_use_is_refused_and_an_address_without_a_listener_is_named() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        place = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        (error,) = joining(place, 0)
    assert isinstance(error, ConfigError)
    (error,) = joining(place, 1)
    assert isinstance(error, PeerLost)
    assert "rank 0" in str(error)


#: what each call returns on both ranks
OF_BOTH = {
    "total": [2, 1],
    "joined": [[0], [1]],
    "mean": 1.75,  # of 1 and three times 2
    "moments": [[4, 1], [5.0, 3.0], [11.0, 1.0]],  # of 0, 4, 8 and 8, and of one entry that rank 1 has
    "gradients": [1.5, 1.5, 0.0],
    "gradients by weight": [1.75, 1.75, 0.0],
    "texts": ["two", ""],
    "of the first": "first",
    "patience": True,
    "agreement": [True, Act.ADD, 3, None, False],
}


@pytest.fixture(scope="module")
def partner() -> Iterator[subprocess.Popen[str]]:
    process = python("-m", "tests.build.partner", stdin=subprocess.PIPE, stderr=None)
    with killed_at_last(process):
        yield process


@pytest.fixture
def both(partner: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, Any]]:
    """Meet the partner at a place, as the rank of this number; what has come of that here and there."""
    for name, value in {"GLOO_SOCKET_IFNAME": "lo", "TORCH_NCCL_BLOCKING_WAIT": "1"}.items():
        monkeypatch.setenv(name, value)  # which a meeting sets, and does not take back
    for module, name, seconds in ((meeting, "LOOK_S", 0.05), (ranks, "ALIVE_S", 0.0), (ranks, "NAMING_S", 0.05)):
        monkeypatch.setattr(module, name, seconds)

    def run(number: int, place: str, here: dict[str, Any], there: dict[str, Any]) -> tuple[Any, Any]:
        assert partner.stdin is not None
        print(json.dumps({"own": 1 - number, "at": place, **there}), file=partner.stdin, flush=True)
        own = meet(number, place, **here)
        return own, json.loads(partner.stdout.readline())

    return run


@pytest.mark.parametrize("number", [0, 1])
def test_each_rank_gets_what_belongs_to_both(both: Callable[..., Any], tmp_path: Path, number: int) -> None:
    calls = {"calls": [*CALLS]}
    here, there = both(number, f"file://{tmp_path}/meeting", calls, calls)
    assert dict(zip(CALLS, here, strict=True)) == dict(zip(CALLS, there, strict=True)) == OF_BOTH
    assert ranks.broadcast_first(b"own", "alone again") == b"own"


@pytest.mark.parametrize(
    ("there", "kind", "named"),
    [
        ({"version": "2"}, "ConfigError", "version:"),
        ({"size": 3}, "PeerLost", "learner.ranks:"),
        ({"secret": "t"}, "PeerLost", "secret"),
        ({"crowd": True}, "PeerLost", "3 connections"),
    ],
    ids=str,
)
def test_ranks_do_not_begin_with_one_that_differs_or_while_others_are_connected(
    both: Callable[..., Any], there: dict[str, Any], kind: str, named: str
) -> None:
    (error, sentence), (other, _) = both(0, f"tcp://127.0.0.1:{free_port()}", {}, there)
    assert (error, other) == (kind, kind)
    assert named in sentence


def test_a_rank_that_ends_is_named_with_the_collective_also_if_the_store_has_gone_with_it(
    folder: Path, both: Callable[..., Any], tmp_path: Path
) -> None:
    (error, sentence), there = both(0, f"file://{tmp_path}/meeting", {"calls": ["total"]}, {})
    assert (error, there) == ("PeerLost", [])
    gone = json.loads((folder / "tcp-lost.json").read_text())
    for said, parts in ((sentence, ("rank 1", "'total'")), (gone, ("rank 0", "'sum of ones'"))):
        assert [part for part in parts if part not in said] == []
