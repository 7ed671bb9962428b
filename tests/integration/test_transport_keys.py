"""Key files: what `beast keygen` makes, which files are refused in words, and secrets as clusters mount them."""

import os
import stat
from pathlib import Path

import pytest

from zerobeast.cli.main import main
from zerobeast.common.errors import ConfigError
from zerobeast.common.transport import Keys, make_keys
from zerobeast.common.wire.messages import Plane

ACTOR = "secret/actor.key_secret"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys")
    return tmp_path / "keys"


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.key*"))


def test_keygen_writes_secrets_for_their_owner_alone_and_overwrites_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "keys"
    assert main(["keygen", str(folder)]) == 0
    files = [Path(line) for line in capsys.readouterr().out.splitlines()]
    roles = ("actor", "broker", "envserver", "learner")
    assert names(folder) == [f"public/{role}.key" for role in roles] + [f"secret/{role}.key_secret" for role in roles]
    assert sorted(files) == sorted(folder.rglob("*.key*"))
    assert {stat.S_IMODE(file.stat().st_mode) for file in files if file.parent.name == "secret"} == {0o600}
    assert stat.S_IMODE((folder / "secret").stat().st_mode) == 0o700
    before = {file: file.read_bytes() for file in files}
    assert main(["keygen", str(folder)]) == 2
    assert str(folder) in capsys.readouterr().err
    assert {file: file.read_bytes() for file in files} == before


def test_keygen_adds_certificates_of_a_role_beside_older_ones(keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {name: (keys / name).read_bytes() for name in names(keys)}
    for number in (2, 3):
        assert main(["keygen", str(keys), "actor"]) == 0
        made = capsys.readouterr().out.splitlines()
        assert made == [f"{keys}/public/actor-{number}.key", f"{keys}/secret/actor-{number}.key_secret"]
    assert {name: (keys / name).read_bytes() for name in before} == before
    admitted = Keys(str(keys), "learner").clients(Plane.ROLLOUTS)
    own = {Keys(str(keys), "actor", f"{keys}/secret/actor{number}.key_secret").public for number in ("", "-2", "-3")}
    assert admitted == own
    assert len(own) == 3


@pytest.mark.parametrize(
    "content", [None, "nonsense", 'public-key = "short"', f'public-key = "{"~" * 40}"', f'public-key = "{"#" * 40}"']
)
@pytest.mark.parametrize("file", [ACTOR, "public/learner.key"])
def test_key_files_that_are_wrong_are_named(keys: Path, file: str, content: str | None) -> None:
    (keys / file).unlink()
    if content is not None:
        (keys / file).write_text(content)
    with pytest.raises(ConfigError, match=rf"security\.keys: .*{Path(file).name}"):
        Keys(str(keys), "actor")


def test_a_secret_that_others_can_read_is_refused(keys: Path) -> None:
    (keys / ACTOR).with_name("public").write_bytes((keys / "public/actor.key").read_bytes())
    with pytest.raises(ConfigError):
        Keys(str(keys), "actor", f"{keys}/secret/public")  # has no secret
    for mode in (0o644, 0o604, 0o640, 0o660, 0o440, 0o602):
        (keys / ACTOR).chmod(mode)
        with pytest.raises(ConfigError, match=rf"actor\.key_secret has mode {mode:o}"):
            Keys(str(keys), "actor")


def mounted(keys: Path, mode: int) -> None:
    """Lay the secret out as the kubelet does: a link to a file behind a link to a folder, which it swaps."""
    file = keys / ACTOR
    (file.parent / "..2031").mkdir()
    (file.parent / "..data").symlink_to("..2031")
    file.rename(file.parent / "..2031" / file.name)
    file.symlink_to(f"..data/{file.name}")
    file.chmod(mode)


def test_a_mounted_secret_may_be_readable_by_the_group_of_its_service_and_by_no_other(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted(keys, 0o440)
    monkeypatch.setattr(os, "geteuid", lambda: (keys / ACTOR).stat().st_uid + 1)
    assert Keys(str(keys), "actor").secret
    for mode in (0o444, 0o460, 0o644):
        (keys / ACTOR).chmod(mode)
        with pytest.raises(ConfigError, match=f"has mode {mode:o}"):
            Keys(str(keys), "actor")


def test_files_that_are_no_certificates_admit_and_harm_nobody(keys: Path, caplog: pytest.LogCaptureFixture) -> None:
    learner = Keys(str(keys), "learner")
    before = learner.clients(Plane.ROLLOUTS)
    (keys / "public" / "actor-2.key").write_bytes(os.urandom(1000))
    (keys / "public" / "actor-3.key").mkdir()
    (keys / "public" / "notes.txt").write_text("none of ours")
    for _ in range(2):
        assert learner.clients(Plane.ROLLOUTS) == before
    assert len(caplog.records) == 2, "each is named once"
