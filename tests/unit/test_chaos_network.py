"""`beast chaos network` without its runs: which faults are tried, how they are reported, and altered services."""

import math
import socket
from pathlib import Path

import pytest

from zerobeast.tools.chaos import main, network_service, table
from zerobeast.tools.chaos.network import experiments
from zerobeast.tools.chaos.network_faults import NetworkTrial
from zerobeast.tools.chaos.network_service import lookups, write_hosts


def test_a_fault_is_one_row_with_median_and_worst_recovery() -> None:
    trials = [NetworkTrial("cut", seconds, 2, plane="steps") for seconds in (3.0, 1.0, 2.0)]
    last = table.markdown(table.of_network(trials)).splitlines()[-1]
    assert last == "| cut | 3 | 2.0 s, 3.0 s | 0; 6 in progress | held |"


def test_a_broken_guarantee_is_reported() -> None:
    good, bad = NetworkTrial("cut", 1.0), NetworkTrial("cut", math.inf, 0, "never recovered", lost=4)
    (row,) = table.of_network([good, bad, bad])
    assert list(row.values()) == ["cut", "3", "inf s, inf s", "8", "2 times: never recovered"]


def test_a_fault_with_nothing_to_recover_from_is_reported() -> None:
    assert table.of_network([NetworkTrial("crowd")])[0]["recovery (median, worst)"] == "nothing to recover"


@pytest.mark.parametrize(
    ("only", "runs"),
    [("", 19), ("weights: ", 11), ("black hole", 1), ("names", 2), ("overload", 6), ("no such fault", 0)],
)
def test_faults_are_chosen_by_part_of_their_name(only: str, runs: int) -> None:
    """A fault of proxies is tried `times` times in one run; any other takes one run each time."""
    assert len(list(experiments(only, times=2, seed=1, lose_packets=True))) == runs


def test_unknown_commands_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nonsense"]) == 2
    assert "unknown command 'nonsense'" in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert "beast chaos network" in capsys.readouterr().out


def test_the_command_explains_its_faults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["network", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for word in ("'black hole for 30 s'", "'1% of packets lost'", "'names'", "'overload: actors'"):
        assert word in text


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in which this process looks up names."""
    monkeypatch.setattr(socket, "getaddrinfo", socket.getaddrinfo)
    network_service._look_up_in(tmp_path / "hosts")
    return tmp_path / "hosts"


def test_names_resolve_to_the_addresses_in_the_file(names: Path) -> None:
    def found(name: str) -> list[str]:
        return [entry[4][0] for entry in socket.getaddrinfo(name, 80, type=socket.SOCK_STREAM)]

    write_hosts(names, {"learner.test": ["127.0.0.2", "127.0.0.3"], "broker.test": []})
    assert found("learner.test") == ["127.0.0.2", "127.0.0.3"]
    with pytest.raises(socket.gaierror):
        found("broker.test")
    assert found("127.0.0.9") == ["127.0.0.9"]
    write_hosts(names, {"learner.test": ["127.0.0.4"]})
    assert found("learner.test") == ["127.0.0.4"]
    assert [name for _, _, name in lookups(names)] == ["learner.test", "broker.test", "learner.test"]
