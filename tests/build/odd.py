"""Environments that misbehave as they are asked to, or show what is around them, such as `tests.build.odd:Odd`."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from tests.build.envs import ON_PURPOSE, Endless, Env, Info, Step

HOME = __name__
ODD, NUMBERED, DRAWN = (f"{HOME}:{name}" for name in ("Odd", "Numbered", "Drawn"))


def hang() -> Any:
    while True:
        time.sleep(1)


def spoil() -> Any:
    spoiled.append(True)
    raise RuntimeError("this process is spoiled")


def is_file(fd: int) -> bool:
    path = Path(f"/proc/self/fd/{fd}")
    return path.exists() and path.is_file()


spoiled: list[bool] = []  #: whether no environment of this process works any more
SLEEPER = [sys.executable, "-c", "import time; time.sleep(1000)"]
#: how `Odd` can be told to misbehave in a step
DEEDS: dict[str, Callable[[], Any]] = {
    "raise": lambda: 1 / 0,
    "spoil": spoil,
    "exit": lambda: os._exit(7),
    "say and exit": lambda: [os.write(2, b"all is well\n"), os._exit(2)],
    "answer": lambda: [os.write(fd, b"{") for fd in range(3, 64) if is_file(fd)],
    "quit": sys.exit,
    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "hang": hang,
    "rest": lambda: time.sleep(0.01),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "ignore": lambda: [signal.signal(signal.SIGTERM, signal.SIG_IGN), hang()],
    "close": lambda: os.closerange(3, 256),
}
SAID = {"nan": float("nan"), "inf": float("inf")}
#: observation spaces of choices
CHOICES: dict[str, spaces.Space[Any]] = {
    "bool": spaces.MultiBinary(2),
    "discrete": spaces.Discrete(5, start=2),
    "multi": spaces.MultiDiscrete([2, 5], start=[0, 3]),
    "binary": spaces.MultiBinary(2),
}


class Odd(Env):
    """Answers and misbehaves as it is told to.

    Args:
      at: step of an episode at which it does so; 0: at none, -1: at every one.
      deed: key of `DEEDS`.
      answer: observation of that step; "nan" and "inf" stand for the numbers, which JSON lacks.
      reward: reward of that step.
      ends: whether that step terminates the episode.
      dtype: dtype of the observation space, or a key of `CHOICES`.
      once: a file; while it is missing nothing odd happens. It is deleted first; its content, if any, is the deed.
      broken: a file; while it exists no environment can be made, and each attempt appends a byte to it.
      family: a file to which every environment appends the ids of two processes it starts, one in a session of its own.
      make_s: seconds that making it takes.
      reset_s: seconds that a reset takes.
      method: start method of a process that multiprocessing starts, whose id joins those in `family`.
    """

    action_space = spaces.Discrete(2)

    def __init__(
        self,
        at: int = 0,
        deed: str = "",
        answer: Any = None,
        reward: Any = 1.0,
        ends: bool = False,
        dtype: str = "float32",
        once: str = "",
        broken: str = "",
        family: str = "",
        make_s: float = 0.0,
        reset_s: float = 0.0,
        method: str = "",
    ) -> None:
        self.observation_space = CHOICES[dtype] if dtype in CHOICES else spaces.Box(0, 255, (2,), np.dtype(dtype).type)
        if dtype == "bool":
            self.observation_space.dtype = np.dtype(bool)
        self.at, self.deed, self.reward, self.once = at, deed, SAID.get(str(reward), reward), once
        self.answer = [SAID.get(str(entry), entry) for entry in answer] if isinstance(answer, list) else answer
        self.count, self.reset_s, self.ends = 0, reset_s, ends
        if broken and Path(broken).exists():
            with Path(broken).open("a") as file:
                file.write("x")
            raise ConnectionError("what this environment needs is not there")
        time.sleep(make_s)
        if family:
            with Path(family).open("a") as file:
                file.writelines(f"{process.pid}\n" for process in started(method))

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        self.count = 0
        time.sleep(self.reset_s)
        return self._plain(), {}

    def _plain(self) -> Any:
        space = self.observation_space
        return np.zeros(space.shape or (), space.dtype) + getattr(space, "start", 0)

    def step(self, action: Any) -> Step:
        self.count += 1
        if spoiled:
            raise RuntimeError("this process is spoiled")
        plain = self._plain()
        if self.at not in (-1, self.count) or not self._due():
            return plain, 1.0, self.count >= 50, False, {}
        if self.deed:
            DEEDS[self.deed]()
        return plain if self.answer is None else self.answer, self.reward, self.ends, False, {}

    def _due(self) -> bool:
        if not self.once:
            return True
        mine = Path(f"{self.once}-{os.getpid()}")
        try:
            Path(self.once).rename(mine)  # only one of several environments succeeds
        except FileNotFoundError:
            return False
        self.deed = mine.read_text() or self.deed
        mine.unlink()
        return True


def started(method: str) -> list[Any]:
    """Processes that outlast their parent: one of multiprocessing, or two others."""
    if not method:
        return [subprocess.Popen(SLEEPER, start_new_session=apart) for apart in (False, True)]
    context: Any = multiprocessing.get_context(method)
    process = context.Process(target=time.sleep, args=(1000,))
    process.start()
    return [process]


class Old(Odd):
    """Resets as gym did before 0.26."""

    def reset(self, **_given: Any) -> Any:
        return super().reset()[0]


class TwoSteps(Env):
    """Episodes of two steps, with a reward of the process."""

    observation_space, action_space = spaces.Box(0, 1, (1,)), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        self.left = 2
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Step:
        self.left -= 1
        return np.zeros(1, np.float32), float(os.getpid()), self.left == 0, False, {}


class Numbered(TwoSteps):
    """Notes the number that it is given, and binds the port of that, below those that connections get."""

    def __init__(self, folder: str, number: Any, port: Any, deep: Any = None) -> None:
        assert type(number) is int, number
        assert (port, deep) == (int(f"1900{number}"), [{"at": f"{{x}}{number}", "n": f'0"{number}'}]), (port, deep)
        assert os.environ["ZEROBEAST_ENV_NUMBER"] == str(number)
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 19000 + number))
        self.file = Path(folder) / f"{number}"
        self.file.write_text(f"{os.getpid()}")

    def close(self) -> None:
        self.socket.close()
        self.file.unlink()


class Twin(Numbered):
    """The same."""


class Drawn(Endless):
    """Draws nothing, or draws black and then ends its process or raises at a step."""

    def __init__(self, render_mode: str | None = None, die_at: int = 0, raise_at: int = 0) -> None:
        self.render_mode, self._die_at, self._raise_at = render_mode, die_at, raise_at

    def step(self, action: Any) -> Step:
        answer = super().step(action)
        if self.steps == self._die_at:
            os._exit(3)
        if self.steps == self._raise_at:
            raise RuntimeError(ON_PURPOSE)
        return answer

    def render(self) -> Any:
        return np.zeros((4, 6, 3), np.uint8) if self._die_at or self._raise_at else None


class Loud(Env):
    """Prints, through `sys.stdout` and directly to its file descriptor."""

    observation_space, action_space = spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(2)

    def __init__(self) -> None:
        sys.stdout.write("made here\n")
        os.write(1, b"{}\n")
