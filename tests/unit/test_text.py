"""Text from strangers controls no terminal; lists of ids, suggestions, and errors of calls from Python."""

import io
import signal
from functools import partial
from pathlib import Path

import pytest

import zerobeast as zb
from tests.build.errors import refuses
from zerobeast.api.python_terms import translate_text
from zerobeast.common.config import load
from zerobeast.common.errors import ConfigError
from zerobeast.common.health.command import render
from zerobeast.common.health.figures import ServiceView
from zerobeast.common.health.verdict import Verdict
from zerobeast.common.process.terminal import say
from zerobeast.common.service import entry
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.text import did_you_mean, printable, split_ids, suggestion, without_folders
from zerobeast.services.envserver.backend import is_reference

DIRECTIONS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
ESCAPES = f"\x1b[2J\x1b]0;title\x07\r\x9b31m\u2028{DIRECTIONS}"


def test_control_characters_are_escaped_and_letters_are_not() -> None:
    assert printable("naïve 環境 \x1b[2J\n\t") == r"naïve 環境 \x1b[2J\n\t"
    assert printable(ESCAPES).isprintable()
    assert printable("two\nlines\x00", lines=True) == "two\nlines\\x00"
    say("run é", file := io.TextIOWrapper(buffer := io.BytesIO(), encoding="ascii", newline=""))
    assert (file.encoding, buffer.getvalue()) == ("ascii", b"run \\xe9\n")


def test_a_fatal_error_has_no_escapes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise ConfigError(f"refuses: {ESCAPES}\nsecond")

    monkeypatch.setattr(load, "resolve", refuse)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert entry.main("actor", [], build=lambda *_: pytest.fail("nothing is built")) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)


def test_untrusted_health_pages_are_shown_without_escapes() -> None:
    view = ServiceView(f"broker{ESCAPES}", "broker", {"role": "broker", "state": f"ready{ESCAPES}"}, note=ESCAPES)
    text = render([view], Verdict(f"unhealthy: {ESCAPES}", good=False), as_json_text=False)
    assert all(line.isprintable() for line in text.split("\n"))
    assert render([view], Verdict(ESCAPES, good=False), as_json_text=True).isprintable()


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        (" A-v0 , b/B-v0", ["A-v0", "b/B-v0"]),
        ("m(a,n(b,c)),d,", ["m(a,n(b,c))", "d", ""]),
        ("a),b,c(d,e", ["a)", "b", "c(d", "e"]),
    ],
)
def test_commas_in_parentheses_do_not_separate_ids(text: str, ids: list[str]) -> None:
    assert split_ids(text) == ids


def test_a_comma_in_the_path_of_a_file_that_is_there_separates_no_environments(tmp_path: Path) -> None:
    file = tmp_path / "Doe, John (work), old" / "walk env.py"
    file.parent.mkdir()
    file.touch()
    for ids in ([f"{file}:Walk"], ["CartPole-v1", f"{file}:Walk", f"{file}:Run-v0", "Acrobot-v1"]):
        assert split_ids(", ".join(ids)) == ids
    config = RunConfig.model_validate({"env": {"id": f"{file}:Walk"}})
    assert (config.env.tasks, is_reference(config.env.id)) == ((f"{file}:Walk",), True)
    assert without_folders(f"CartPole-v1,{file}:Walk") == "CartPole-v1,walk env.py:Walk"
    assert split_ids("/gone, away/a.py:B") == ["/gone", "away/a.py:B"]


@pytest.mark.parametrize(
    ("wrong", "known", "near"),
    [
        ("PONG", ["Pong", "Ping"], "Pong?"),
        ("batch_sise", ["learner.batch_size", "seed"], "learner.batch_size?"),
        ("threads", ["learner.threads", "broker.threads"], "learner.threads or broker.threads?"),
        ("pp0", ["a2c", "ppo", "sac"], "ppo?"),
        ("zzz", ["Pong"], ""),
    ],
)
def test_a_name_that_is_near_is_suggested(wrong: str, known: list[str], near: str) -> None:
    assert did_you_mean(wrong, known).rpartition("mean ")[2] == near
    assert suggestion("zzz", map(str, range(60))).endswith(" 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...")


@pytest.mark.parametrize(
    ("text", "worded"),
    [
        ("flag --ppo.lr: unknown setting", "ppo.lr: unknown setting"),
        ("a new one: give another --name, or --fresh", "a new one: give another name=, or fresh=True"),
        ("--by-env shows each", "by_env=True shows each"),
        ("give --env.kwargs '{\"a\": true}' as well", "give env_kwargs={'a': True} as well"),
        (
            "`beast train --name x`; to see where: python --env=X",
            "`beast train --name x`; to see where: python --env=X",
        ),
        ("a - b -- c", "a - b -- c"),
    ],
)
def test_flags_become_arguments_except_in_commands(text: str, worded: str) -> None:
    assert translate_text(text) == translate_text(worded) == worded


def test_calls_speak_of_their_arguments(tmp_path: Path) -> None:
    begin = partial(zb.start, root=tmp_path)
    for path, call in (
        ("ppo.lr", lambda: zb.train("CartPole-v1", "ppo", root=tmp_path, ppo={"lr": 1e-3})),
        ("name", lambda: begin(name="x")),
        ("batch_siz", lambda: begin("CartPole-v1", batch_siz=3)),
        ("ppo", lambda: begin("CartPole-v1", "ppo", ppo=3)),
        ("run", lambda: zb.record(3)),  # type: ignore[arg-type]
        ("file", lambda: zb.sweep({})),  # type: ignore[arg-type]
    ):
        with refuses(path) as caught:
            call()
        assert "--" not in str(caught.error)
    assert not list(tmp_path.iterdir())
    assert zb.train.__name__ == "train"
