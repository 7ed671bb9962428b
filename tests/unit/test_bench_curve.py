"""`beast bench curve`: a line per run, a colour per name without its seed, and when the goal was reached."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from zerobeast.common.errors import ConfigError
from zerobeast.tools.bench.curve import main


def run_folder(root: Path, name: str, means: list[str]) -> str:
    rows = [f"{1000 * n},{10.0 * n},{mean}" for n, mean in enumerate(means, 1)]
    (root / name).mkdir()
    (root / name / "metrics.csv").write_text("\n".join(["agent_steps,elapsed_s,mean_return_100", *rows]) + "\n")
    return str(root / name)


def test_runs_that_differ_in_their_seed_alone_have_one_colour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    runs = [run_folder(tmp_path, name, ["", "3", "9", "7"]) for name in ("a-seed1", "a-seed12", "b-seed1")]
    assert main([*runs, "--goal", "8", "--out", str(tmp_path / "c.png")]) == 0
    panel = drawn[0].axes[0]
    lines = [line for line in panel.lines if len(line.get_xdata()) == 3]
    first, second, other = (line.get_color() for line in lines)
    assert first == second != other
    legend = panel.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]
    said = "a-seed12: best 9.0, last 7.0 at 4000 agent steps, 40 s; 8 reached at 3000 agent steps, 30 s"
    assert said in capsys.readouterr().out.splitlines()


def test_a_run_without_a_finished_episode_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"empty.*no episode has ended"):
        main([run_folder(tmp_path, "empty", ["", ""]), "--out", str(tmp_path / "c.png")])
