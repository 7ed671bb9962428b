"""Encrypted tcp: who has the keys talks, who has not is not heard, and files that are wrong say so."""

import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.config.tree import RunConfig
from common.entry import Instance
from common.errors import ConfigError
from common.messages import Header, Kind, Plane
from common.transport import ClientPort, Context, Poller, ServerPort, load_keys, make_keys
from deploy.cli import main
from services.envserver.service import EnvServer
from tests.helpers import free_port

pytestmark = pytest.mark.integration

SENDER = 77


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys")
    return tmp_path / "keys"


@pytest.fixture
def contexts() -> Iterator[Callable[..., Context]]:
    made: list[Context] = []

    def make(folder: Path | None, role: str) -> Context:
        made.append(Context(load_keys(str(folder or ""), role)))
        return made[-1]

    yield make
    for context in made:
        context.term()


def heard(server: Context, client: Context, seconds: float, endpoint: str = "") -> bool:
    """Whether a HELLO arrives and its answer comes back."""
    endpoint = endpoint or f"tcp://127.0.0.1:{free_port()}"
    here = ServerPort(server, Plane.STEPS, endpoint)
    there = ClientPort(client, Plane.STEPS, endpoint, SENDER)

    def answered() -> bool:
        there.send(Header(Kind.HELLO, SENDER, body=({},)))
        while message := here.receive():
            here.send(Header(Kind.WELCOME, message.header.sender, body=({},)))
        Poller([here, there]).wait(0.05)
        return there.receive() is not None

    try:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if answered():
                return True
        return False
    finally:
        here.close()
        there.close()


def test_holders_of_keys_talk(keys: Path, contexts: Callable[..., Context]) -> None:
    assert heard(contexts(keys, "envserver"), contexts(keys, "actor"), 20)


def test_an_ipc_path_needs_no_keys(keys: Path, contexts: Callable[..., Context], tmp_path: Path) -> None:
    assert heard(contexts(keys, "envserver"), contexts(None, "actor"), 20, f"ipc://{tmp_path}/s")


def test_strangers_are_not_heard(keys: Path, contexts: Callable[..., Context], tmp_path: Path) -> None:
    server = contexts(keys, "envserver")
    make_keys(tmp_path / "others")
    for file in ("envserver.key", "broker.key", "learner.key"):  # a stranger knows everything that is public
        (tmp_path / "others" / file).write_bytes((keys / file).read_bytes())
    assert not heard(server, contexts(None, "actor"), 1.5)
    assert not heard(server, contexts(tmp_path / "others", "actor"), 1.5)
    assert heard(server, contexts(keys, "actor"), 20)


def test_a_client_does_not_talk_to_a_server_with_another_key(
    keys: Path, contexts: Callable[..., Context], tmp_path: Path
) -> None:
    make_keys(tmp_path / "others")
    (tmp_path / "others" / "actor.key").write_bytes((keys / "actor.key").read_bytes())  # it would admit the client
    assert not heard(contexts(tmp_path / "others", "envserver"), contexts(keys, "actor"), 1.5)


def test_keygen_writes_secrets_for_their_owner_alone_and_overwrites_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keygen", str(tmp_path / "keys")]) == 0
    files = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(file.name for file in files) == sorted(
        f"{role}.{kind}" for role in ("envserver", "actor", "broker", "learner") for kind in ("key", "key_secret")
    )
    assert {stat.S_IMODE(file.stat().st_mode) for file in files if file.suffix == ".key_secret"} == {0o600}
    before = {file: file.read_bytes() for file in files}
    assert main(["keygen", str(tmp_path / "keys")]) == 2
    assert "holds keys already" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in files} == before


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda folder: (folder / "actor.key_secret").unlink(), "actor.key_secret cannot be read"),
        (lambda folder: (folder / "learner.key").unlink(), "learner.key cannot be read"),
        (lambda folder: (folder / "actor.key_secret").write_text("nonsense"), "actor.key_secret cannot be read"),
        (lambda folder: (folder / "actor.key_secret").write_text('public-key = "short"'), "a key has 40 characters"),
        (
            lambda folder: (folder / "actor.key_secret").write_bytes((folder / "actor.key").read_bytes()),
            "holds no secret key",
        ),
        (lambda folder: (folder / "actor.key_secret").chmod(0o644), "can be read by everybody"),
    ],
)
def test_key_files_that_are_wrong_are_named(keys: Path, spoil: Callable[[Path], object], sentence: str) -> None:
    spoil(keys)
    with pytest.raises(ConfigError, match=r"security\.keys: .*" + sentence):
        load_keys(str(keys), "actor")
    assert load_keys("", "actor") is None


def test_a_service_without_its_keys_ends_with_one_sentence(tmp_path: Path) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    config = {"envserver": {"endpoint": endpoint}, "security": {"keys": str(tmp_path)}}
    with pytest.raises(ConfigError, match=r"envserver\.key_secret cannot be read"):
        EnvServer(RunConfig.model_validate(config), Instance()).run()
