"""Whether more actors ever make a run slower: 1, 2, 4, ... of them on environments that cost no CPU."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from zerobeast.common.errors import BeastError
from zerobeast.tools.bench.constant_envserver import ENV_ID
from zerobeast.tools.bench.options import emit, parse
from zerobeast.tools.throwaway_run import START_LIMIT_S, ThrowawayRun

MOST = 64
FLAT = 0.8  #: of the best rate: less, with more actors, is a collapse


def main(argv: list[str]) -> int:
    """`beast bench scale`."""
    options, _, flags = parse("scale", ["--preset", "classic", *argv, "--env", ENV_ID], seconds=10.0, warmup=5.0)
    rates: dict[int, float] = {}
    with tempfile.TemporaryDirectory(prefix="beast-") as name, ThrowawayRun(flags, Path(name)) as run:
        run.start("learner")
        run.start("envserver", module="zerobeast.tools.bench.constant_envserver")
        run.start("broker")
        for count in (1 << power for power in range(MOST.bit_length())):
            for _ in range(count - sum(child.spec.role == "actor" for child in run.children)):
                run.start("actor")
            _wait_for_all(run, count)
            rates[count] = run.rate(options.warmup, options.seconds)
    peak = max(rates, key=lambda count: rates[count])
    left = min(rate for count, rate in rates.items() if count >= peak) / rates[peak]
    lines = ["actors   agent steps a second", *(f"{count:6}   {rate:12.0f}" for count, rate in rates.items())]
    lines.append(f"beyond the best, at least {left:.2f} of it is left; goal {FLAT}")
    emit({"rates": rates, "left": left, "goal": FLAT}, "\n".join(lines), options.json)
    return 0


def _wait_for_all(run: ThrowawayRun, count: int) -> None:
    """Until every actor takes part: starting them costs far more than what is measured."""
    deadline = time.monotonic() + START_LIMIT_S
    while sum(page.get("agent_steps", 0) > 0 for page in run.pages("actor")) < count:
        if time.monotonic() > deadline:
            raise BeastError(f"{count} actors did not all take part within {START_LIMIT_S:.0f} s")
        time.sleep(0.2)
