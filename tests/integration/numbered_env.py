"""Environments that note the number that each of their copies is given, and need a port of their own."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium import spaces

from zerobeast.common.process import usage


class Numbered(gymnasium.Env):
    """Binds the port of its number, below those that connections get; its episodes last two steps."""

    observation_space, action_space = spaces.Box(0, 1, (1,)), spaces.Discrete(2)

    def __init__(self, folder: str, number: Any, port: Any, deep: Any = None) -> None:
        assert type(number) is int, number
        assert (port, deep) == (int(f"1900{number}"), [{"at": f"{{x}}{number}", "n": f'0"{number}'}]), (port, deep)
        assert os.environ["ZEROBEAST_ENV_NUMBER"] == str(number)
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 19000 + number))
        self.file = Path(folder) / f"{number}"
        self.file.write_text(f"{os.getpid()}")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.left = 2
        return self.observation_space.low, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        self.left -= 1
        return self.observation_space.low, float(os.getpid()), self.left == 0, False, {}

    def close(self) -> None:
        self.socket.close()
        self.file.unlink()


class Twin(Numbered):
    """The same."""


class Leaking(gymnasium.Env):
    """Its episodes last two steps, and each reset starts a process of this size."""

    observation_space, action_space = spaces.Box(0, 1, (1,)), spaces.Discrete(2)

    def __init__(self, leak_mb: int) -> None:
        usage.MEMORY_PERIOD_S = 1e-9  # of the worker process
        self.grow = [sys.executable, "-Sc", f"x = b'1' * ({leak_mb} << 20); print(flush=True); input()"]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(self.grow, stdin=pipe, stdout=pipe)
        leaked.append(self.process)
        self.process.stdout.readline()
        self.left = 2
        return self.observation_space.low, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        self.left -= 1
        return self.observation_space.low, 1.0, self.left == 0, False, {}


leaked: list[Any] = []
