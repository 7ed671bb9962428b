"""Env-server and actor run without torch installed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import zerobeast

ROOT = Path(__file__).parents[2]
NEEDS_TORCH = (
    "zerobeast.rl.ops",
    "zerobeast.rl.nets",
    "zerobeast.rl.acting",
    "zerobeast.rl.algos",
    "zerobeast.rl.replay",
    "zerobeast.services.broker",
    "zerobeast.services.evaluator.service",
    "zerobeast.services.learner",
    "zerobeast.services.evaluator",
)

PROBE = """
import importlib, sys
sys.modules["torch"] = None
failed = []
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError as error:
        failed.append(f"{name}: {error}")
sys.exit("\\n".join(failed) or 0)
"""


def test_the_torch_free_floor_imports_without_torch() -> None:
    """The base, the two services built on it, and what scripts call."""
    folders = ("common", "services", "rl/algos", "clients/remote", "results", "api")
    ours = [path for folder in folders for path in (ROOT / "zerobeast" / folder).rglob("*.py")]
    ours += ROOT.glob("zerobeast/clients/env_*.py")
    every = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in ours}
    names = {name for name in every if not name.startswith(NEEDS_TORCH) and not name.endswith("__main__")}
    names |= {name for name in every if name.startswith("zerobeast.rl.algos.") and name.endswith(".config")}
    assert {"zerobeast.rl.algos.impala.config", "zerobeast.services.actor.service"} < names
    needs_torch = "zerobeast.rl.ops.vtrace"  # proves that the probe detects something
    command = [sys.executable, "-c", PROBE, *sorted(names), needs_torch]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert [line.partition(":")[0] for line in found.stderr.splitlines()] == [needs_torch], found.stderr


def test_public_names_exist_and_the_package_loads_without_their_dependencies() -> None:
    probe = "import sys, zerobeast; sys.exit(str({'torch', 'zmq', 'numpy'} & set(sys.modules) or ''))"
    found = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert found.stderr.strip() == "", "loaded by `import zerobeast`"
    homes = {name: getattr(zerobeast, name).__module__ for name in zerobeast.__all__}
    assert all(f"{home}.".startswith("zerobeast.") for home in homes.values()), homes
    with pytest.raises(AttributeError, match="no attribute 'Plyer'"):
        _ = zerobeast.Plyer


ELSEWHERE = """
import os, signal, socket, sys
sys.modules |= dict.fromkeys(("resource", "fcntl", "termios", "pwd", "grp"))
lacking = {os: ("sched_", "fork", "getuid", "geteuid", "killpg", "memfd_", "posix_", "getloadavg", "sysconf"),
           socket: ("AF_UNIX",), signal: ("SIGKILL", "SIGHUP", "SIGUSR", "SIGQUIT", "SIGALRM", "pthread_", "setitimer")}
for module, starts in lacking.items():
    for name in filter(lambda name: name.startswith(starts), dir(module)):
        delattr(module, name)
from zerobeast import ArraySpace, ClusterVectorEnv, EnvSpec, PeerLost, PolicyClient
nobody, env = "tcp://127.0.0.1:9", EnvSpec("Own-v0", ArraySpace.box((2,)), ArraySpace.discrete(2))
for client in (
    lambda: ClusterVectorEnv([nobody], "CartPole-v1", 1, timeout_s=0.1),
    lambda: PolicyClient(nobody, nobody, env, timeout_s=0.1),
):
    try:
        client()
    except PeerLost as error:
        print(type(error).__name__)
"""


def test_clients_work_on_systems_without_what_unix_or_linux_alone_has() -> None:
    command = [sys.executable, "-c", ELSEWHERE]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert found.stdout.split() == ["PeerLost"] * 2, found.stderr


RUNS_CODE = {"pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}  #: loading their data may run code from it


def test_nothing_of_ours_imports_pickle() -> None:
    found = []
    for folder in ("common", "services", "tools", "zerobeast"):
        texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / folder).rglob("*.py")}
        for path in (path for path, text in texts.items() if any(name in text for name in RUNS_CODE)):
            for node in ast.walk(ast.parse(texts[path])):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
                found += [f"{path}: {name}" for name in names if name.partition(".")[0] in RUNS_CODE]
    assert found == []
