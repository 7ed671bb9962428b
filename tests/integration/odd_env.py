"""An environment that misbehaves on request; its id is `tests.integration.odd_env:Odd-v0`."""

import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SLEEPER = [sys.executable, "-c", "import time; time.sleep(1000)"]
SAID = {"nan": float("nan"), "inf": float("inf")}
#: observation spaces of choices
CHOICES = {
    "bool": spaces.MultiBinary(2),
    "discrete": spaces.Discrete(5, start=2),
    "multi": spaces.MultiDiscrete([2, 5], start=[0, 3]),
    "binary": spaces.MultiBinary(2),
}


def _hang() -> None:
    while True:
        time.sleep(1)


def _spoil() -> None:
    spoiled.append(True)
    raise RuntimeError("this process is spoiled")


spoiled: list[bool] = []  #: whether no environment of this process works any more

#: how it can be told to misbehave in a step
DEEDS: dict[str, Callable[[], Any]] = {
    "raise": lambda: 1 / 0,
    "spoil": _spoil,
    "exit": lambda: os._exit(7),
    "say and exit": lambda: (os.write(2, b"all is well\n"), os._exit(2)),
    "answer": lambda: [os.write(fd, b"{") for fd in range(3, 64) if _is_file(fd)],
    "quit": sys.exit,
    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "hang": _hang,
    "rest": lambda: time.sleep(0.01),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "ignore": lambda: (signal.signal(signal.SIGTERM, signal.SIG_IGN), _hang()),
    "close": lambda: os.closerange(3, 256),
}


def _is_file(fd: int) -> bool:
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError:
        return False


class Odd(gymnasium.Env):
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
        self.action_space = spaces.Discrete(2)
        self.at, self.deed, self.reward, self.once = at, deed, SAID.get(str(reward), reward), once
        self.answer = [SAID.get(str(entry), entry) for entry in answer] if isinstance(answer, list) else answer
        self.count, self.reset_s, self.ends = 0, reset_s, ends
        if broken and Path(broken).exists():
            with Path(broken).open("a") as file:
                file.write("x")
            raise ConnectionError("what this environment needs is not there")
        time.sleep(make_s)
        if family:
            started: list[Any] = []
            if method:
                started = [multiprocessing.get_context(method).Process(target=time.sleep, args=(1000,))]
                started[0].start()
            else:
                started = [subprocess.Popen(SLEEPER, start_new_session=apart) for apart in (False, True)]
            with Path(family).open("a") as file:
                file.writelines(f"{process.pid}\n" for process in started)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        self.count = 0
        time.sleep(self.reset_s)
        return self._plain(), {}

    def _plain(self) -> Any:
        space = self.observation_space
        return np.zeros(space.shape, space.dtype) + getattr(space, "start", 0)

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict]:
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
        try:
            self.deed = Path(self.once).read_text() or self.deed
            Path(self.once).unlink()  # only one of several environments succeeds
        except FileNotFoundError:
            return False
        return True


class Old(Odd):
    """Resets as gym did before 0.26."""

    def reset(self, **_given: Any) -> Any:
        return super().reset()[0]


gymnasium.register("Odd-v0", Odd)
gymnasium.register("Old-v0", Old)
