"""Environments that misbehave as they are asked to, or show what is around them, such as `tests.build.odd:Odd`."""

import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from tests.build.envs import ON_PURPOSE, Endless, Env, Info, Step

HOME = __name__
ODD, NUMBERED, DRAWN = (f"{HOME}:{name}" for name in ("Odd", "Numbered", "Drawn"))


def spoil() -> Any:
    spoiled.append(True)
    raise RuntimeError("this process is spoiled")


def is_file(fd: int) -> bool:
    path = Path(f"/proc/self/fd/{fd}")
    return path.exists() and path.is_file()


spoiled: list[bool] = []  #: whether no environment of this process works any more
#: how `Odd` can be told to misbehave in a step
DEEDS: dict[str, Callable[[], Any]] = {
    "raise": lambda: 1 / 0,
    "spoil": spoil,
    "exit": lambda: os._exit(7),
    "say and exit": lambda: [os.write(2, b"all is well\n"), os._exit(2)],
    "answer": lambda: [os.write(fd, b"{") for fd in range(3, 64) if is_file(fd)],
    "hang": lambda: time.sleep(1e6),
    "rest": lambda: time.sleep(0.01),
}
SAID = {"nan": float("nan"), "inf": float("inf")}
#: observation spaces of choices
CHOICES: dict[str, spaces.Space[Any]] = {
    "bool": spaces.MultiBinary(2),
    "discrete": spaces.Discrete(5, start=2),
    "multi": spaces.MultiDiscrete([2, 5], start=[0, 3]),
}


@dataclass(eq=False)
class Odd(Env):
    """Answers and misbehaves as it is told to."""

    action_space = spaces.Discrete(2)
    at: int = 0  #: step of an episode at which it does so; 0: at none, -1: at every one
    deed: str = ""  #: key of `DEEDS`
    answer: Any = None  #: observation of that step; "nan" and "inf" stand for the numbers, which JSON lacks
    reward: Any = 1.0  #: of that step
    ends: bool = False  #: whether that step terminates the episode
    dtype: str = "float32"  #: of the observation space, or a key of `CHOICES`
    once: str = ""  #: a file without which nothing odd happens, and which is deleted first
    broken: str = ""  #: a file; while it exists no environment can be made
    family: str = ""  #: a file that gets the id of a process that each environment starts, and that would outlast it
    method: str = "spawn"  #: by which multiprocessing starts that one
    make_s: float = 0.0  #: that making it takes
    reset_s: float = 0.0  #: that a reset takes

    def __post_init__(self) -> None:
        plain = spaces.Box(0, 255, (2,), np.dtype("float32" if self.dtype in CHOICES else self.dtype).type)
        self.observation_space = CHOICES.get(self.dtype, plain)
        if self.dtype == "bool":
            self.observation_space.dtype = np.dtype(bool)
        self.reward = SAID.get(str(self.reward), self.reward)
        if isinstance(self.answer, list):
            self.answer = [SAID.get(str(entry), entry) for entry in self.answer]
        if self.broken and Path(self.broken).exists():
            raise ConnectionError("what this environment needs is not there")
        time.sleep(self.make_s)
        if self.family:
            context: Any = multiprocessing.get_context(self.method)
            process = context.Process(target=time.sleep, args=(1000,))
            process.start()
            with Path(self.family).open("a") as file:
                file.write(f"{process.pid}\n")

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
        try:
            if self.once:
                Path(self.once).unlink()  # only one of several environments succeeds
        except FileNotFoundError:
            return False
        return True


class Old(Odd):
    """Resets as gym did before 0.26."""

    def reset(self, **_given: Any) -> Any:
        return super().reset()[0]


class Numbered(Env):
    """Notes the number that it is given, and binds the port of that; its reward names its process."""

    observation_space, action_space = spaces.Box(0, 1, (1,)), spaces.Discrete(2)

    def __init__(self, folder: str, number: Any, port: Any, deep: Any = None) -> None:
        assert type(number) is int, number
        assert (port, deep) == (int(f"1900{number}"), [{"at": f"{{x}}{number}", "n": f'0"{number}'}]), (port, deep)
        assert os.environ["ZEROBEAST_ENV_NUMBER"] == str(number)
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 19000 + number))
        self.file = Path(folder) / f"{number}"
        self.file.write_text(f"{os.getpid()}")

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        self.left = 2
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Step:
        self.left -= 1
        return np.zeros(1, np.float32), float(os.getpid()), self.left == 0, False, {}

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


def loud() -> Odd:
    """Prints, through `sys.stdout` and directly to its file descriptor."""
    sys.stdout.write("made here\n")
    os.write(1, b"{}\n")
    return Odd()
