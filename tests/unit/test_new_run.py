"""How a new run takes its folder, and what a start that fails leaves."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.build import starts
from tests.build.errors import refused
from zerobeast.cli.train import TrainFlags, train
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.launcher import start
from zerobeast.launcher.fleet import Fleet
from zerobeast.launcher.start import Settled
from zerobeast.launcher.supervisor import Ending

SPEC = EnvSpec("CartPole-v1", ArraySpace.box((4,)), ArraySpace.discrete(2))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(start, "spec_for", lambda _: SPEC)
    monkeypatch.setattr(start, "padded", lambda config: config)
    monkeypatch.setattr(start, "first_check", lambda _: [])
    return tmp_path


def settled(root: Path, *flags: str) -> Settled[TrainFlags]:
    return starts.settled(root, "--env", "CartPole-v1", *flags)


def begun(run: Settled[TrainFlags], *codes: int | None) -> RunConfig:
    """Begin a run whose services end with these exit codes."""
    with start.begun(run, {}, say=lambda _: None) as fleet:
        children: list[Any] = fleet.children
        children += [SimpleNamespace(code=code) for code in codes]
        return fleet.config


def test_runs_that_are_settled_in_the_same_second_get_folders_of_their_own(root: Path) -> None:
    runs = [settled(root, "--seed", str(seed)) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        names = [config.name for config in pool.map(begun, runs)]
    assert len(set(names)) == 4
    for name, run in zip(names, runs, strict=True):
        assert f"seed: {run.config.seed}\n" in (root / name / "config.yaml").read_text()


def test_a_new_run_that_cannot_be_started_leaves_nothing_and_one_that_crashed_its_logs(root: Path) -> None:
    with pytest.raises(KeyboardInterrupt), start.begun(settled(root), {}, say=lambda _: None):
        raise KeyboardInterrupt
    assert not list(root.iterdir())
    begun(settled(root, "--name", "before"))
    begun(settled(root, "--name", "refused"), 0, 2, None)  # by a service
    assert {path.name for path in root.iterdir()} == {"before", "latest"}
    assert (root / "latest").read_text() == "before\n"
    for codes in ((1,), (0, -15), (None,)):
        assert (begun(settled(root), *codes).folder / "logs").is_dir()


def test_a_start_that_fails_leaves_what_was_there(root: Path) -> None:
    begun(settled(root, "--name", "x"))
    begun(settled(root, "--name", "x"), 2)
    assert (root / "x" / "config.yaml").exists(), "it was there before"
    (root / "mine").mkdir()
    (root / "mine" / "thesis.tex").touch()
    with refused(str(root / "mine")):
        begun(settled(root, "--name", "mine"))
    assert (root / "mine" / "thesis.tex").exists()
    trained = settled(root, "--name", "trained")
    with start.begun(trained, {}, say=lambda _: None) as fleet:
        (fleet.config.folder / "checkpoint.pt").touch()
        children: list[Any] = fleet.children
        children.append(SimpleNamespace(code=2))
    assert trained.config.folder.exists()


def test_a_run_that_is_refused_when_it_continues_does_not_advise_to_continue_it(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = begun(settled(root, "--name", "x", "--local.placement", "fused")).folder
    (folder / "checkpoint.pt").touch()
    (folder / "metrics.csv").write_text("agent_steps\n500\n")
    endings = [Ending(2, "checkpoint.pt is damaged"), Ending(130)]
    monkeypatch.setattr(Fleet, "add_all", lambda _: [])
    monkeypatch.setattr(Fleet, "supervisor", lambda *_: SimpleNamespace(run=lambda: endings.pop(0)))
    for code, advised in ((2, False), (130, True)):
        assert train(["--root", str(root), "--name", "x"], {}) == code
        said = capsys.readouterr()
        assert ("beast train: checkpoint.pt is damaged" in said.err) != advised
        assert ("continue:" in said.out) == ("evaluate:" in said.out) == advised
