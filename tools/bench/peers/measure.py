"""One row of the table: a peer's, or our own."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from zerobeast.common.config.load import load
from zerobeast.common.errors import BeastError
from zerobeast.tools.bench.peers.catalogue import ENV_ID, OURS, Peer
from zerobeast.tools.bench.peers.installation import prepare
from zerobeast.tools.bench.peers.process import PeerFailed, run
from zerobeast.tools.bench.peers.table import Row, parse_line
from zerobeast.version import __version__

RUNNERS = Path(__file__).parent / "runners"
MARGIN_S = 600.0  #: for imports, the first update and an orderly end, on a busy machine too
OUR_FLAGS = ["--env", ENV_ID, "--net.torso", "shallow"]


def measure_peer(peer: Peer, root: Path, warmup_s: float, seconds: float) -> Row:
    """Train with a peer in its own virtual environment; what goes wrong is the row's failure."""
    try:
        python = prepare(peer, root)
        command = [str(python), str(RUNNERS / peer.runner), "--warmup", str(warmup_s), "--seconds", str(seconds)]
        with tempfile.TemporaryDirectory(prefix="beast-peer-", ignore_cleanup_errors=True) as folder:
            environ = {**peer.environ, "TMPDIR": folder}
            log = root / f"{peer.name}.log"
            output = run(command, log, warmup_s + seconds + MARGIN_S, environ, Path(folder))
        measured = parse_line(output)
    except PeerFailed as error:
        return Row(name=peer.name, version=peer.version, settings=peer.settings, failure=str(error))
    return Row(name=peer.name, version=measured.version, settings=peer.settings, rate=measured.rate)


def measure_ours(flags: list[str], warmup_s: float, seconds: float) -> Row:
    """Train with all our services, as `beast bench train` does.

    Args:
      flags: settings besides those that make the work the same as the peers'.
      warmup_s: seconds of training before measuring begins.
      seconds: how long to measure.
    """
    from zerobeast.tools.bench.train import measure

    flags = [*flags, *OUR_FLAGS]
    config = load(flags, os.environ)
    settings = f"{config.algo}, 4 services, {config.actor.env_groups} x {config.actor.envs_per_group} envs"
    try:
        run = measure(flags, warmup_s, seconds)
    except BeastError as error:
        return Row(name=OURS, version=__version__, settings=settings, failure=str(error))
    precision = run.pages["learner"].get("precision", "float32")
    return Row(name=OURS, version=__version__, settings=f"{settings}, {precision}", rate=run.rate)
