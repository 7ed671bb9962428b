"""What encryption costs: two runs of the same training over tcp, without keys and with them, that take turns.

One stands still while the other trains, since a shared machine changes its speed from minute to minute.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from zerobeast.common.transport import make_keys
from zerobeast.tools.bench.options import emit, parse
from zerobeast.tools.bench.paused import paused
from zerobeast.tools.throwaway_run import ThrowawayRun

TURN_S = 10.0  #: at most: shorter than what anybody waits for before missing a peer
SETTLING_S = 1.0
PORTS = {"envserver": 5550, "broker": 5555, "learner": 5560}


def main(argv: list[str]) -> int:
    """`beast bench keys`."""
    options, config, flags = parse("keys", argv, seconds=60.0, warmup=10.0)
    turns = max(1, round(options.seconds / TURN_S))
    with tempfile.TemporaryDirectory(prefix="beast-bench-") as name:
        folders = [Path(name) / which for which in ("without", "with")]
        for folder in folders:
            folder.mkdir()
        with ThrowawayRun(flags, folders[0]) as plain, ThrowawayRun(flags, folders[1]) as keyed:
            begin(plain)
            begin(keyed, keys=True)
            for run in (plain, keyed):
                run.rate(options.warmup, SETTLING_S)
            rates: dict[str, list[float]] = {"without keys": [], "with keys": []}
            for _ in range(turns):
                for found, run, other in zip(rates.values(), (plain, keyed), (keyed, plain), strict=True):
                    with paused(other.status_folder):
                        found.append(run.rate(SETTLING_S, options.seconds / turns))
    ratio = sum(rates["with keys"]) / sum(rates["without keys"])
    lines = [f"{config.env.id} over tcp on loopback, agent steps a second, {turns} turns each"]
    lines += [f"  {which:<14}" + "".join(f"{rate:9.0f}" for rate in found) for which, found in rates.items()]
    lines.append(f"  ratio         {ratio:9.2f}")
    emit({"env_id": config.env.id, "rates": rates, "ratio": ratio}, "\n".join(lines), options.json)
    return 0


def begin(run: ThrowawayRun, *, keys: bool = False) -> None:
    """Start the services of a run, which meet at tcp endpoints."""
    own = list(_endpoints())
    if keys:
        make_keys(run.folder / "keys")
        own += ["--security.keys", f"{run.folder}/keys"]
    for role in ("learner", "envserver", "broker", "actor"):
        run.start(role, *own)


def _endpoints() -> Iterator[str]:
    """Flags that put every plane on tcp, at a loopback address that is almost certainly unused."""
    host = ".".join(["127", *(str(random.randrange(1, 255)) for _ in range(3))])  # noqa: S311
    for role, port in PORTS.items():
        yield from (f"--{role}.endpoint", f"tcp://{host}:{port}")
