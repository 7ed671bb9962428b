"""The works, their peers, exact versions and settings: the one place that has to change when a peer does."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from zerobeast.common.errors import ConfigError

OWN_NAME = "zerobeast"
TORCH = "torch==2.13.0"  #: installed first, so that every peer computes with the build that this machine keeps
ROM_SOURCE = "ale-py==0.12.1"  #: its wheel carries the ROMs; older releases fetch them while they are installed
#: the last environments with which packages work that need a gymnasium before 1.0
OLD_GYMNASIUM = (
    "gymnasium[atari,mujoco]==0.29.1",
    "ale-py==0.8.1",
    "numpy==1.26.4",
    "opencv-python==4.11.0.86",
    "mujoco==2.3.7",
    "box2d==2.3.10",
    "pygame==2.6.1",
)


class Package(NamedTuple):
    """A public package in its virtual environment, which all works and races share."""

    name: str  #: also that of its virtual environment
    packages: tuple[str, ...]  #: installed besides torch, its own package first; all versions exact
    environ: Mapping[str, str] = MappingProxyType({})  #: environment variables for its processes
    rom: bool = False  #: whether its emulator has to be given Pong's ROM


SB3 = Package(
    name="sb3",
    packages=(
        "stable-baselines3==2.9.2",
        "gymnasium[mujoco]==1.4.0",
        "ale-py==0.12.1",
        "numpy==2.4.6",
        "opencv-python-headless==4.13.0.92",
        "mujoco==4.0.0",
        "box2d==2.3.10",
        "pygame==2.6.1",
    ),
)
SAMPLE_FACTORY = Package(
    name="sample-factory",
    packages=(
        "sample-factory==2.1.1",
        *OLD_GYMNASIUM,
    ),
    rom=True,
)
RLLIB = Package(
    name="rllib",
    packages=(
        "ray[rllib]==2.60.0",
        "gymnasium[mujoco]==1.2.2",
        "ale-py==0.12.1",
        "numpy==2.4.6",
        "opencv-python-headless==4.13.0.92",
        "mujoco==3.3.7",
    ),
    environ={"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"},
)
#: what its scripts import; they themselves come from a checkout
CLEANRL = Package(
    name="cleanrl",
    packages=(
        "tyro==0.5.10",
        *OLD_GYMNASIUM,
        "gym==0.23.1",
        "envpool==0.8.4",
        "tensorboard==2.20.0",
    ),
    rom=True,
)


class Peer(NamedTuple):
    """A public package that does the same work."""

    package: Package
    settings: str  #: shown in its row; for `pong` the fastest of several on two cores, for other works not searched
    runner: str  #: the script in `runners/` that trains with it, and arguments
    goal: float  #: for the ratio of our rate to its rate

    @property
    def name(self) -> str:
        """For `--only`."""
        return self.package.name

    @property
    def version(self) -> str:
        """Version of its package, for the row of a peer that does not run."""
        return self.package.packages[0].partition("==")[2]


class Work(NamedTuple):
    """What is trained, by us and by peers."""

    name: str  #: as `--work` takes it
    what: str  #: for the help text
    flags: tuple[str, ...]  #: our settings that make the work the same
    peers: tuple[Peer, ...]

    def peer(self, name: str) -> Peer:
        """The peer of that name."""
        return next(peer for peer in self.peers if peer.name == name)


_PONG_PEERS = (
    Peer(SB3, "A2C, 16 envs in one process", "sb3.py a2c", goal=3.0),
    Peer(SAMPLE_FACTORY, "APPO, asynchronous, 2 workers x 8 envs", "sample_factory_appo.py", goal=3.0),
    Peer(RLLIB, "IMPALA, 1 runner x 16 envs, OMP_NUM_THREADS=1", "rllib_impala.py", goal=4.0),
)
#: 8 uniform samples for each agent step; random actions end early, since most steps of a long run need inference
_DQN_FLAGS = """
    --env PongNoFrameskip-v4 --algo dqn --net.torso shallow --dqn.batch_size 32 --dqn.samples_per_insert 8
    --dqn.n_step 1 --dqn.double false --dqn.dueling false --dqn.priority_exponent 0
    --dqn.replay_size 20000 --dqn.replay_min_size 1000 --dqn.exploration_steps 1000
"""
#: an update of 256 samples for each agent step
_SAC_FLAGS = """
    --env HalfCheetah-v5 --algo sac --net.hidden_size 256 --net.normalize_obs false --sac.batch_size 256
    --sac.samples_per_insert 256 --sac.replay_size 100000 --sac.replay_min_size 1000 --sac.random_steps 1000
"""
_WORKS = (
    Work(
        name="pong",
        what="Pong, each step trained on once",
        flags=("--env", "PongNoFrameskip-v4", "--net.torso", "shallow"),
        peers=_PONG_PEERS,
    ),
    Work(
        name="dqn",
        what="Pong by DQN, 8 samples from the replay for each step",
        flags=tuple(_DQN_FLAGS.split()),
        peers=(Peer(SB3, "DQN, 8 envs in one process", "sb3.py dqn", goal=1.5),),
    ),
    Work(
        name="sac",
        what="HalfCheetah-v5 by SAC, 256 samples from the replay for each step",
        flags=tuple(_SAC_FLAGS.split()),
        peers=(Peer(SB3, "SAC, 8 envs in one process", "sb3.py sac", goal=1.5),),
    ),
)
WORKS = {work.name: work for work in _WORKS}


def choose(only: str | None, work: Work) -> list[str]:
    """The names to run: all of a work, or those that `--only` lists, in the order of the table.

    Raises:
      ConfigError: a name is unknown, or none is left.
    """
    known = [*(peer.name for peer in work.peers), OWN_NAME]
    if only is None:
        return known
    wanted = [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        what = f"unknown peer {unknown[0]!r}" if unknown else "names no peer"
        raise ConfigError(f"--only: {what}; expected some of {', '.join(known)}")
    return [name for name in known if name in wanted]
