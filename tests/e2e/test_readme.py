"""README's ten lines of Python do what they say; docs/examples/tour is the notebook that is executed."""

import re
from pathlib import Path

from tests.helpers import ROOT, finished, python

LINES = re.search(r"```python\n(import gymnasium\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
SMALL = {"total_steps=100_000": "total_steps=1_000", "episodes=20": "episodes=2"}  #: so that each takes seconds


def test_the_lines_run_on_the_command_line(tmp_path: Path) -> None:
    assert LINES is not None
    text = LINES[1]
    assert sum(map(bool, text.splitlines())) == 10
    for long, short in SMALL.items():
        assert long in text
        text = text.replace(long, short)
    code, out, error = finished(python("-c", text, cwd=tmp_path, variables={"CUDA_VISIBLE_DEVICES": ""}))
    assert (code, error) == (0, ""), error
    assert float(out.split()[-1]) > 0
    assert "done: 1,000/1,000 agent steps" in out
