"""Numbers of environments, beside other users of the machine."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from zerobeast.services.envserver import numbers

Make = Callable[[], int]


def noted() -> int:
    """An environment that is its number."""
    with numbers.fill_number({"number": "{number}"}) as kwargs:
        return int(kwargs["number"])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for /tmp."""
    monkeypatch.setattr(numbers, "PLACE", str(tmp_path))
    return tmp_path


@pytest.fixture
def make(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Make an environment as another process would, until the test ends."""
    with ExitStack() as stack:

        def made() -> int:
            monkeypatch.setattr(numbers.NumberedEnvs, "_from", 0)
            return stack.enter_context(closing(numbers.NumberedEnvs(noted)))(0)

        yield made


def names(place: Path, *suffixes: int) -> list[Path]:
    return [place / f"zerobeast-{os.getuid()}-{suffix}" for suffix in suffixes]


def test_every_process_has_the_lowest_numbers_free(place: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [make(), make(), make()] == [0, 1, 2]
    with closing(numbers.NumberedEnvs(noted)) as another:
        assert [another(0), another(1), another(0)] == [3, 4, 3]
    assert make() == 3
    monkeypatch.setattr(numbers, "PLACE", "/nonexistent")  # a folder for all
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(place))
    assert make() == 4, "in that of this process"


def test_other_users_can_hold_no_number(place: Path, make: Make) -> None:
    open_to_all, link, file = names(place, 0, 1, 2)
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    link.symlink_to(place)
    file.touch()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        with suppress(OSError):  # somebody else has it
            stranger.bind("\0zerobeast-env-0")
        assert [make(), make()] == [0, 1]
    (own,) = names(place, 3)
    assert own.stat().st_mode & 0o777 == 0o700
    assert not list(open_to_all.iterdir())


def test_processes_share_numbers_even_if_others_give_a_name_back(place: Path, make: Make) -> None:
    (taken,) = names(place, 0)
    taken.touch()
    assert make() == 0
    taken.unlink()
    assert make() == 1


def test_a_name_that_another_user_removes_meanwhile_is_passed_over(
    place: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert make() == 0
    glob, gone = Path.glob, names(place, 0)[0].with_name(f"zerobeast-{os.getuid()}-")
    monkeypatch.setattr(Path, "glob", lambda path, pattern: [gone, *glob(path, pattern)])
    assert make() == 1
