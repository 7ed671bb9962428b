"""What the quick start shows works as it is written but for the numbers, and keeps variables off the disk.

`test_wheel.py` follows README's first page.
"""

import re
import shlex
from pathlib import Path

import pytest

from tests.build.commands import SMALL, beast
from tests.helpers import ROOT, killed_at_last, python, wait_for_end, wait_until

SECTION = re.search(
    r"## From a run to a result\n.*?```\n(.*?)```", (ROOT / "docs/quickstart.md").read_text(), re.DOTALL
)
SHORTER = {
    "60000": "8000",
    "20000": "2000",
    "--evaluate.times 10": "--evaluate.times 2",
    "--episodes 20": "--episodes 3",
}
MADE = {"cart.png": b"\x89PNG", "cart.gif": b"GIF89a", "cart-policy/README.md": b"---", "cart-policy/config.json": b"{"}


@pytest.mark.timeout(900)  # on two busy cores; ten commands load torch
def test_every_line_of_the_transcript_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("av", "PIL", "matplotlib", "safetensors"):
        pytest.importorskip(name)
    assert SECTION is not None
    text = SECTION[1]
    for long, short in SHORTER.items():
        assert long in text
        text = text.replace(long, short)
    monkeypatch.chdir(tmp_path)
    train, watch, *others = (shlex.split(line, comments=True)[1:] for line in text.splitlines())
    with killed_at_last(run := beast(*train)):
        wait_until(lambda: list(tmp_path.glob("runs/cart/services/learner*")), 60)
        code, out, error = wait_for_end(beast(*watch))
        assert (code, error) == (0, "")
        assert "cart" in out
        code, _, error = wait_for_end(run)
        assert (code, error) == (0, "")
    for command in others:
        code, out, error = wait_for_end(beast(*command))
        assert code == 0, (command, error)
        assert out or command[0] in ("plot", "record"), command
    for name, begins in MADE.items():
        assert (tmp_path / name).read_bytes().startswith(begins), name


SECRET = "hunter2-correct-horse-battery-staple"


def test_no_environment_variable_is_written_except_settings(tmp_path: Path) -> None:
    variables = {
        "TMPDIR": str(tmp_path),
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "DATABASE_URL": f"postgres://user:{SECRET}@host/db",
        "BEAST_SEED": "48611",
    }
    flags = ("--root", tmp_path / "runs", "--name", "x", *SMALL, "--total_steps", "1000", "--plain")
    code, out, error = wait_for_end(python("-m", "zerobeast", "train", *flags, variables=variables, cwd=tmp_path))
    assert code == 0, error
    written = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {".yaml", ".pt", ".csv", ".log", ".json"} <= {path.suffix for path in written}
    assert any("tfevents" in path.name for path in written)
    assert [path for path, content in written.items() if SECRET.encode() in content] == []
    assert SECRET not in out + error
    assert b"seed: 48611" in written[Path("runs/x/config.yaml")], "a variable that is a setting is kept as one"
