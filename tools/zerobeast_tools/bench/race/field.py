"""The tasks of a race and who takes part in each."""

from typing import NamedTuple

from zerobeast.common.errors import ConfigError
from zerobeast_tools.bench.peers.catalogue import CLEANRL, OWN_NAME, RLLIB, SAMPLE_FACTORY, SB3, Package


class Entry(NamedTuple):
    """Somebody who takes part in a task."""

    name: str  #: for `--only`
    settings: str  #: shown in its row; ours: the algorithm
    package: Package | None = None  #: None: ours
    runner: str = ""  #: the script in `peers/runners/`, and its arguments
    script: str = ""  #: of CleanRL: its path in a checkout, and its arguments


class Task(NamedTuple):
    """An environment, a score to reach there, and how policies are evaluated."""

    name: str  #: for `--tasks`
    env: str
    threshold: float
    every: int  #: agent steps between evaluations
    episodes: int  #: of an evaluation
    entries: tuple[Entry, ...]  #: ours first, since its time limits the others

    def entry(self, name: str) -> Entry:
        """The entry of that name."""
        return next(entry for entry in self.entries if entry.name == name)


def _ours(algo: str) -> Entry:
    return Entry(OWN_NAME, algo)


def _sb3(algo: str) -> Entry:
    return Entry("sb3", f"{algo}, settings of the RL Zoo", SB3, "race_sb3.py")


def _sample_factory(example: str) -> Entry:
    return Entry("sample-factory", f"APPO, settings of its {example} example", SAMPLE_FACTORY, "race_sample_factory.py")


def _rllib(algo: str) -> Entry:
    return Entry("rllib", f"{algo}, settings of its example", RLLIB, "race_rllib.py")


def _cleanrl(name: str, script: str) -> Entry:
    return Entry(f"cleanrl-{name}", script, CLEANRL, "race_cleanrl.py", script)


_TASKS = (
    Task(
        *("cartpole", "CartPole-v1", 475.0, 5_000, 10),
        (
            *(_ours("impala"), _sb3("PPO"), _sample_factory("gymnasium"), _rllib("PPO")),
            *(_cleanrl("ppo", "ppo.py"), _cleanrl("pqn", "pqn.py")),
        ),
    ),
    Task(
        *("lunarlander", "LunarLander-v3", 200.0, 10_000, 10),
        (
            *(_ours("ppo"), _sb3("PPO"), _sample_factory("gymnasium")),
            _cleanrl("ppo", "ppo.py --env-id LunarLander-v2"),
            _cleanrl("pqn", "pqn.py --env-id LunarLander-v2"),
        ),
    ),
    Task(
        *("pong", "PongNoFrameskip-v4", 18.0, 25_000, 3),
        (
            *(_ours("impala"), _sb3("PPO"), _sample_factory("Atari"), _rllib("PPO")),
            _cleanrl("ppo", "ppo_atari.py --env-id PongNoFrameskip-v4"),
            _cleanrl("pqn", "pqn_atari_envpool.py --env-id Pong-v5"),
        ),
    ),
    Task(
        *("halfcheetah", "HalfCheetah-v5", 6_000.0, 10_000, 10),
        (
            *(_ours("sac"), _sb3("SAC"), _sample_factory("MuJoCo"), _rllib("SAC")),
            _cleanrl("ppo", "ppo_continuous_action.py --env-id HalfCheetah-v4"),
        ),
    ),
)
TASKS = {task.name: task for task in _TASKS}
NAMES = tuple(dict.fromkeys(entry.name for task in _TASKS for entry in task.entries))


def pick(flag: str, text: str | None, known: tuple[str, ...]) -> list[str]:
    """The names that a flag lists, in the order of the table; all of them by default.

    Raises:
      ConfigError: a name is unknown, or there is none.
    """
    wanted = known if text is None else tuple(filter(None, (name.strip() for name in text.split(","))))
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        value = unknown[0] if unknown else str(text)
        raise ConfigError(path=flag, value=value, expected=f"some of {', '.join(known)}, with commas between them")
    return [name for name in known if name in wanted]
