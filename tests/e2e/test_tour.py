"""The notebook of docs/examples/tour: all cells run without warnings, and the progress of a run is one output."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers import ROOT

TOUR = ROOT / "docs/examples/tour"


@pytest.mark.timeout(900)  # on two busy cores; nine runs
def test_every_cell_runs_and_progress_is_one_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    folder = tmp_path / "tour"
    shutil.copytree(TOUR, folder)
    notebook = nbformat.read(folder / "tour.ipynb", as_version=4)
    needed = {name: find_spec(name) for cell in notebook.cells for name in cell.metadata.get("tags", [])}
    notebook.cells = [cell for cell in notebook.cells if all(map(needed.get, cell.metadata.get("tags", [])))]
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    said = [output["text"] for output in outputs if output.get("name") == "stderr"]
    assert len(said) == 1
    assert "the learning rate, 0 before, continues at" in said[0], "what a run that continues should be known for"
    shown = [output["data"]["text/plain"] for output in outputs if output.output_type == "display_data"]
    runs = ("cart", "cart", "reach", "cart-slow", "cart")
    assert [text.split()[0] for text in shown] == [*runs]
    assert [text.splitlines()[1].partition(" agent steps")[0] for text in shown[1:]] == [
        *("done: 4,000/4,000", "done: 3,000/3,000", "done: 2,000/2,000", "done: 6,000/6,000")
    ]
    results = [output["data"]["text/plain"] for output in outputs if output.output_type == "execute_result"]
    assert len(results) == sum(cell.cell_type == "code" for cell in notebook.cells) - 2  # two cells print
    if needed["optuna"]:
        assert "('PRUNED', 1e-05" in results[-1]
