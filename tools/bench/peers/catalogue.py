"""The peers, their exact versions and their settings: the one place that has to change when a peer does."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from zerobeast.common.errors import ConfigError

ENV_ID = "PongNoFrameskip-v4"
OURS = "zerobeast"
TORCH = "torch==2.13.0"  #: goes first, so that every peer computes with the build that this machine keeps
ROM_SOURCE = "ale-py==0.12.1"  #: its wheel carries the ROMs; older releases fetch them while they are installed


class Peer(NamedTuple):
    """A public package that trains the same game."""

    name: str  #: as `--only` knows it; also that of its virtual environment
    settings: str  #: those that were the fastest of several on two cores, for its row
    packages: tuple[str, ...]  #: what its virtual environment holds besides torch, itself first; every version exact
    runner: str  #: the script in `runners/` that trains with it
    goal: float  #: of the ratio of our rate to its
    environ: Mapping[str, str] = MappingProxyType({})  #: variables that its process gets
    rom: bool = False  #: whether its emulator has to be given Pong's ROM

    @property
    def version(self) -> str:
        """Of the package, for the row of a peer that does not run."""
        return self.packages[0].partition("==")[2]


_PEERS = (
    Peer(
        name="sb3",
        settings="A2C, 16 envs in one process",
        packages=(
            "stable-baselines3==2.9.2",
            "gymnasium==1.4.0",
            "ale-py==0.12.1",
            "numpy==2.4.6",
            "opencv-python-headless==4.13.0.92",
        ),
        runner="sb3_a2c.py",
        goal=3.0,
    ),
    Peer(
        name="sample-factory",
        settings="APPO, asynchronous, 2 workers x 8 envs",
        packages=(
            "sample-factory==2.1.1",
            "gymnasium[atari]==0.29.1",
            "ale-py==0.8.1",
            "numpy==1.26.4",
            "opencv-python==4.11.0.86",
        ),
        runner="sample_factory_appo.py",
        goal=3.0,
        rom=True,
    ),
    Peer(
        name="rllib",
        settings="IMPALA, 1 runner x 16 envs, OMP_NUM_THREADS=1",
        packages=(
            "ray[rllib]==2.60.0",
            "gymnasium==1.2.2",
            "ale-py==0.12.1",
            "numpy==2.4.6",
            "opencv-python-headless==4.13.0.92",
        ),
        runner="rllib_impala.py",
        goal=4.0,
        environ={"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"},
    ),
)
PEERS = {peer.name: peer for peer in _PEERS}


def choose(only: str | None) -> list[str]:
    """The names to run: all, or those that `--only` lists, in the order of the table.

    Raises:
      ConfigError: a name is unknown, or none is left.
    """
    known = [*PEERS, OURS]
    if only is None:
        return known
    wanted = [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        what = f"unknown peer {unknown[0]!r}" if unknown else "names no peer"
        raise ConfigError(f"--only: {what}; expected some of {', '.join(known)}")
    return [name for name in known if name in wanted]
