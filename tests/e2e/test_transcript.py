"""The quick start's transcript, from a run to a policy that others can load, as it is written but for the numbers."""

import re
import shlex
from pathlib import Path

import pytest

from tests.build.commands import beast
from tests.helpers import ROOT, finished, killed_at_last, wait_until

SECTION = re.search(
    r"## From a run to a result\n.*?```\n(.*?)```", (ROOT / "docs/quickstart.md").read_text(), re.DOTALL
)
SMALL = {"60000": "8000", "20000": "2000", "--evaluate.times 10": "--evaluate.times 2", "--episodes 20": "--episodes 3"}
MADE = {"cart.png": b"\x89PNG", "cart.gif": b"GIF89a", "cart-policy/README.md": b"---", "cart-policy/config.json": b"{"}


@pytest.mark.timeout(900)  # on two busy cores; ten commands load torch
def test_every_line_of_the_transcript_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("av", "PIL", "matplotlib", "safetensors"):
        pytest.importorskip(name)
    assert SECTION is not None
    text = SECTION[1]
    for long, short in SMALL.items():
        assert long in text
        text = text.replace(long, short)
    monkeypatch.chdir(tmp_path)
    train, watch, *others = (shlex.split(line, comments=True)[1:] for line in text.splitlines())
    with killed_at_last(run := beast(*train)):
        wait_until(lambda: list(tmp_path.glob("runs/cart/services/learner*")), 60)
        code, out, error = finished(beast(*watch))
        assert (code, error) == (0, "")
        assert "cart" in out
        code, _, error = finished(run)
        assert (code, error) == (0, "")
    for command in others:
        code, out, error = finished(beast(*command))
        assert code == 0, (command, error)
        assert out or command[0] in ("plot", "record"), command
    for name, begins in MADE.items():
        assert (tmp_path / name).read_bytes().startswith(begins), name
