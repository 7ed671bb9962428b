"""What encryption costs: the same training run over tcp, in turns without keys and with them."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from common.transport import make_keys
from deploy.bench.options import emit, parse
from deploy.bench.services import Services

ROUNDS = 2
PORTS = {"envserver": 5550, "broker": 5555, "learner": 5560}


def main(argv: list[str]) -> int:
    """`beast bench keys`."""
    options, config, flags = parse("keys", argv, seconds=30.0, warmup=10.0)
    rates: dict[str, list[float]] = {"without keys": [], "with keys": []}
    for _ in range(ROUNDS):
        for name, found in rates.items():
            found.append(training_rate(flags, options.warmup, options.seconds, keys=name == "with keys"))
    ratio = sum(rates["with keys"]) / sum(rates["without keys"])
    lines = [f"{config.env.id} over tcp on loopback, agent steps a second, {ROUNDS} runs each"]
    lines += [f"  {name:<14}" + "".join(f"{rate:9.0f}" for rate in found) for name, found in rates.items()]
    lines.append(f"  ratio         {ratio:9.2f}")
    emit({"env_id": config.env.id, "rates": rates, "ratio": ratio}, "\n".join(lines), options.json)
    return 0


def training_rate(flags: list[str], warmup_s: float, seconds: float, *, keys: bool) -> float:
    """Agent steps a second of a run whose services meet at tcp endpoints."""
    with tempfile.TemporaryDirectory(prefix="beast-bench-") as name, Services(flags, Path(name)) as run:
        own = list(_endpoints())
        if keys:
            make_keys(Path(name) / "keys")
            own += ["--security.keys", f"{name}/keys"]
        for role in ("learner", "envserver", "broker", "actor"):
            run.start(role, *own)
        return run.rate(warmup_s, seconds)


def _endpoints() -> Iterator[str]:
    """Flags that put every plane on tcp, at a loopback address that is as good as certain to be nobody else's."""
    host = ".".join(["127", *(str(random.randrange(1, 255)) for _ in range(3))])  # noqa: S311
    for role, port in PORTS.items():
        yield from (f"--{role}.endpoint", f"tcp://{host}:{port}")
