"""A compose project of this repository under a name of its own, on a real Docker engine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.helpers import ROOT

BASE = "docker-compose.yml"
FUSED = "deploy/compose/fused.yml"


def engine() -> str:
    """Why there is no Docker engine with Compose here; empty if there is one."""
    if shutil.which("docker") is None:
        return "docker is not installed"
    for command in (["docker", "info"], ["docker", "compose", "version"]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            return f"{' '.join(command)}: {' '.join(done.stderr.split())[:200]}"
    return ""


NO_ENGINE = engine()
needs_docker = pytest.mark.skipif(bool(NO_ENGINE), reason=NO_ENGINE)


def docker(*arguments: str, check: bool = True) -> str:
    """Run docker and return its output."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=1200, check=False)
    assert not check or done.returncode == 0, f"docker {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout + ("" if check else done.stderr)


class Project:
    """One project; settings go to all services.

    Args:
      name: name of the project.
      settings: environment variables for compose.
      files: compose files that describe it.
    """

    def __init__(self, name: str, settings: Mapping[str, str], files: Sequence[str] = (BASE,)) -> None:
        self.name = name
        self.environ = os.environ | settings
        self._files = [flag for file in files for flag in ("-f", file)]

    def compose(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run docker compose for this project."""
        command = ["docker", "compose", *self._files, "-p", self.name, *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=self.environ, capture_output=True, text=True, timeout=1200, check=False
        )
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done

    def containers(self, service: str = "") -> list[dict[str, Any]]:
        """All containers of a service or of the project, including those that ended."""
        listing = self.compose("ps", "--all", "--format", "json", *([service] if service else [])).stdout
        if listing.lstrip().startswith("["):
            return list(json.loads(listing))
        return [json.loads(line) for line in listing.splitlines() if line.strip()]

    def health(self) -> dict[str, Any]:
        """What `beast health --json` says."""
        done = subprocess.run(
            [sys.executable, "-m", "zerobeast", "health", "--project", self.name, "--json"],
            cwd=ROOT,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.stdout, done.stderr
        return dict(json.loads(done.stdout)) | {"code": done.returncode}

    def pages(self, role: str) -> list[dict[str, Any]]:
        """Health pages of the services of a role that answer."""
        found = [entry["page"] for entry in self.health()["services"] if entry["role"] == role]
        return [page for page in found if page]

    def total(self, role: str, key: str) -> float:
        """The sum of a figure over the services of a role."""
        return sum(page.get(key) or 0 for page in self.pages(role))

    def down(self) -> None:
        """Remove everything, the volume too."""
        self.compose("down", "--volumes", "--timeout", "15", check=False)
