"""`beast watch` from another terminal."""

import signal
from pathlib import Path

from tests.e2e.test_run import SMALL, beast
from tests.helpers import finished, killed_at_last, wait_until


def test_it_shows_a_run_that_it_has_not_started_and_ends_with_it(tmp_path: Path) -> None:
    flags = ("--root", tmp_path, "--name", "x", *SMALL, "--learner.log_every_s", "0.2")
    run, metrics = beast("train", *flags), tmp_path / "x" / "metrics.csv"
    with killed_at_last(run):
        wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") > 1, 200)
        stranger = beast("watch", "--root", tmp_path, "--plain")
        assert stranger.stdout
        line = stranger.stdout.readline()
        run.send_signal(signal.SIGINT)
        finished(run)
    code, out, error = finished(stranger)
    assert (code, error) == (0, "")
    assert "agent steps |" in line, line
    assert out.splitlines()[-1].startswith("x: stopped after ")
    code, _, error = finished(beast("watch", "x", "--root", tmp_path))
    assert code == 2
    assert error.startswith("beast watch: run 'x': nothing runs there now; it has done ")
