"""The services of a run folder, in which each has left the address of its health page."""

from __future__ import annotations

from pathlib import Path

from zerobeast.common.errors import ConfigError
from zerobeast.common.health.command import UNREACHABLE
from zerobeast.common.health.pages import announced_page
from zerobeast.common.health.views import ServiceView
from zerobeast.common.runtime import run_files


def services_of(folder: Path) -> list[ServiceView]:
    """One view for every service that the newest start of the run has announced.

    Raises:
      ConfigError: there is no such run, or it never started.
    """
    if not folder.is_dir():
        raise ConfigError(f"run {folder.name!r}: there is no folder {folder}")
    files = sorted((folder / run_files.SERVICES).glob("*.json"))
    if not files:
        raise ConfigError(f"run {folder.name!r}: no service has announced itself in {folder / run_files.SERVICES}")
    return [_view(file) for file in files]


def newest(root: Path) -> Path | None:
    """The run in `root` whose services announced themselves last."""
    files = [file for file in root.glob(f"*/{run_files.SERVICES}/*.json") if not file.parents[1].is_symlink()]
    return max(files, key=lambda file: file.stat().st_mtime).parents[1] if files else None


def _view(file: Path) -> ServiceView:
    role, _, index = file.stem.rpartition("-")
    page = announced_page(file)
    if page is None or page.get("role") != role:
        return ServiceView(f"{role} {index}", role, silent_s=UNREACHABLE, note="no answer")
    return ServiceView(f"{role} {index}", role, page)
