"""README's ten lines of Python do what they say: in a script, with `python -c`, and as cells of a notebook."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ROOT, finished, python

LINES = re.search(r"```python\n(import gymnasium\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
SMALL = {"total_steps=100_000": "total_steps=1_000", "episodes=20": "episodes=2"}  #: so that each takes seconds


def lines() -> str:
    assert LINES is not None
    text = LINES[1]
    assert sum(map(bool, text.splitlines())) == 10
    for long, short in SMALL.items():
        assert long in text
        text = text.replace(long, short)
    return text


@pytest.mark.parametrize("how", ["script", "-c"])
def test_the_lines_run_in_a_script_and_on_the_command_line(tmp_path: Path, how: str) -> None:
    (tmp_path / "script.py").write_text(lines())
    arguments = ["script.py"] if how == "script" else ["-c", lines()]
    code, out, error = finished(python(*arguments, cwd=tmp_path, variables={"CUDA_VISIBLE_DEVICES": ""}))
    assert (code, error) == (0, ""), error
    assert float(out.split()[-1]) > 0
    assert "done: 1,000/1,000 agent steps" in out


def test_the_lines_run_in_a_notebook_whose_own_classes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = pytest.importorskip("jupyter_client.manager")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    kernel = manager.KernelManager()
    kernel.start_kernel(cwd=str(tmp_path))
    client = kernel.blocking_client()
    written, shown = list[str](), list[tuple[str, str]]()

    def execute(cell: str) -> dict[str, Any]:
        def take(message: dict[str, Any]) -> None:
            written.append(message["content"].get("text", ""))
            shown.append((message["msg_type"], message["content"].get("data", {}).get("text/plain", "")))

        content: dict[str, Any] = client.execute_interactive(cell, timeout=200, output_hook=take)["content"]
        return content

    try:
        client.wait_for_ready(timeout=120)
        for cell in lines().split("\n\n"):
            assert (reply := execute(cell))["status"] == "ok", reply
        refused = execute("class Mine(gymnasium.Wrapper): pass\nzb.train(Mine)")
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
    progress = [(kind, text) for kind, text in shown if "CartPole-v1-" in text]
    assert progress[0][0] == "display_data"  # one output, with name and folder, which is updated in place
    assert {kind for kind, _ in progress[1:]} == {"update_display_data"}
    assert f"in {tmp_path}" in progress[0][1]
    assert "1,000/1,000 agent steps" in progress[-1][1]
    *_, result = "".join(written).rstrip().split("\n")
    assert float(result) > 0
    assert (refused["ename"], refused["evalue"].partition(",")[0]) == (
        "ConfigError",
        "env Mine is defined in a notebook or on the command line",
    )
