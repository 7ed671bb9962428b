"""What `kubectl kustomize` makes of a folder of deploy/kubernetes. No cluster is asked."""

from __future__ import annotations

import copy
import functools
import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.unit.kubernetes.objects import Object

ROOT = Path(__file__).parents[3]
KUBERNETES = ROOT / "deploy" / "kubernetes"
COMPONENTS = sorted(folder.name for folder in (KUBERNETES / "components").iterdir())
OVERLAYS = ["base", *(f"overlays/{name}" for name in COMPONENTS)]  #: people may have others of their own
READER = KUBERNETES / "reader.yaml"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  #: the one in C is ten times as fast
OLDEST_KUSTOMIZE = (5, 0)  #: earlier ones lack parts of what the files use


def render(folder: str | Path) -> list[Object]:
    """The objects of a folder, a fresh copy for each caller."""
    return copy.deepcopy(_rendered(KUBERNETES / folder))


def load(file: Path) -> Object:
    """The one object in a file."""
    found: Object = yaml.safe_load(file.read_text(encoding="utf-8"))
    return found


@functools.cache
def _rendered(folder: Path) -> list[Object]:
    result = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, f"{folder.name}: {result.stderr}"
    assert not result.stderr, f"{folder.name}: {result.stderr}"  # warnings, such as of deprecated fields
    return list(yaml.load_all(result.stdout, LOADER))


@functools.cache
def _why_not() -> str:
    """What keeps this machine from rendering; empty where nothing does."""
    if not shutil.which("kubectl"):
        return "kubectl is not installed"
    result = subprocess.run(
        ["kubectl", "version", "--client", "-o", "json"], capture_output=True, text=True, timeout=60
    )
    found = json.loads(result.stdout).get("kustomizeVersion", "v0.0.0") if result.returncode == 0 else "v0.0.0"
    major, minor, *_ = found.removeprefix("v").split(".")
    if (int(major), int(minor)) < OLDEST_KUSTOMIZE:
        return "kubectl is too old: its kustomize is older than 5.0, which came with kubectl 1.27"
    return ""


needs_kubectl = pytest.mark.skipif(bool(_why_not()), reason=_why_not() or "never")
