"""`beast bench peers`: public packages on the same work on this machine, one after the other, beside ours.

Each trains Pong (84x84 grey, 4 frames stacked, 4 skipped) with the network of Nature DQN, in a virtual environment of
its own that is made when it is first needed. Nothing else should run meanwhile. Every setting of `beast train` is a
flag here too, for our row.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from zerobeast.tools.bench.options import MEANINGS, emit, settings
from zerobeast.tools.bench.peers.catalogue import OURS, PEERS, choose
from zerobeast.tools.bench.peers.measure import measure_ours, measure_peer
from zerobeast.tools.bench.peers.table import Row, as_json, describe


def main(argv: list[str]) -> int:
    """`beast bench peers`; exit code 1 where a row has no rate.

    Raises:
      ConfigError: a peer is unknown, or a setting is wrong.
    """
    options, flags = _parse(argv)
    names = choose(options.only)
    settings(flags)  # a wrong one ends here, before anything runs
    rows = [_measure(name, options, flags) for name in names]
    result = as_json(rows, seconds=options.seconds, warmup=options.warmup)
    emit(result, describe(rows), options.json)
    return 1 if any(row.failure for row in rows) else 0


def _parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    names = ",".join([*(peer.name for peer in PEERS), OURS])
    parser = argparse.ArgumentParser(prog="beast bench peers", allow_abbrev=False, description=__doc__)
    parser.add_argument("--only", help=f"some of {names}; all without it")
    parser.add_argument("--seconds", type=float, default=60.0, help=f"{MEANINGS['seconds']}; default 60")
    parser.add_argument("--warmup", type=float, default=20.0, help=f"{MEANINGS['warmup']}; default 20")
    parser.add_argument(
        "--venvs",
        type=Path,
        default=Path.home() / ".cache" / "zerobeast-peers",
        help="folder of the virtual environments and the peers' logs",
    )
    parser.add_argument("--json", type=Path, help="write the result here as well")
    return parser.parse_known_args(argv)


def _measure(name: str, options: argparse.Namespace, flags: list[str]) -> Row:
    sys.stderr.write(f"{name}: training for {options.warmup + options.seconds:.0f} s\n")
    if name == OURS:
        row = measure_ours(flags, options.warmup, options.seconds)
    else:
        peer = next(peer for peer in PEERS if peer.name == name)
        row = measure_peer(peer, options.venvs.expanduser().resolve(), options.warmup, options.seconds)
    sys.stderr.write(f"{name}: {row.failure or f'{row.rate:.0f} agent steps/s'}\n")
    return row
