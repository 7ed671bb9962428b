"""The services of a run folder, in which each has left the address of its health page."""

from collections.abc import Iterator
from pathlib import Path

from zerobeast.common.errors import ConfigError
from zerobeast.common.files import run_files
from zerobeast.common.files.regular_files import read_last_lines
from zerobeast.common.health.command import UNREACHABLE
from zerobeast.common.health.figures import ServiceView
from zerobeast.common.health.pages import fetch_announced_page, read_announcement
from zerobeast.common.health.status import read_status
from zerobeast.common.health.verdict import ELSEWHERE_ROLE
from zerobeast.common.text import in_line
from zerobeast.discovery.containers import LAST_LINE, gather_views

AT_ONCE = 64  #: pages asked at a time
REMOTE_HELP = "also query services on other machines, at the addresses in the run's folder"  #: help of --remote


def services_of(folder: Path, *, remote: bool) -> list[ServiceView]:
    """One view for every service that the newest start of the run has announced, and one for all out of reach.

    Args:
      folder: of the run, which may be of somebody else.
      remote: whether it decides what is reached beyond this machine.

    Raises:
      ConfigError: there is no such run, or it never started.
    """
    if not folder.is_dir():
        raise ConfigError(f"run {folder.name!r}: there is no folder {folder}")
    files = sorted((folder / run_files.SERVICES).glob("*.json"))
    if not files:
        raise ConfigError(f"run {folder.name!r}: no service has registered in {folder / run_files.SERVICES}")
    views = gather_views(lambda file: list(_views(file, remote=remote)), files, AT_ONCE)
    hosts = ", ".join(sorted({view.note for view in views if view.role == ELSEWHERE_ROLE}))[:LAST_LINE]
    where = "whose pages answer on their machines alone" if remote else "on other machines, to ask with --remote"
    away = ServiceView(
        ELSEWHERE_ROLE, ELSEWHERE_ROLE, silent_s=UNREACHABLE, note=f"services {where} (health.host): on {hosts}"
    )
    return [view for view in views if view.role != ELSEWHERE_ROLE] + [away] * bool(hosts)


def find_newest(root: Path) -> Path | None:
    """The run in `root`, or in a sweep there, whose services announced themselves last."""
    places = [root, *(file.parent for file in root.glob(f"*/{run_files.SWEEP}") if not file.parent.is_symlink())]
    found = (file for place in places for file in place.glob(f"*/{run_files.SERVICES}/*.json"))
    files = [file for file in found if not file.parents[1].is_symlink()]
    return max(files, key=lambda file: file.lstat().st_mtime).parents[1] if files else None


def _views(file: Path, *, remote: bool) -> Iterator[ServiceView]:
    """The service with a status file; if its page is out of reach, how it ended or its newest line, or its machine."""
    role, _, index = file.stem.rpartition("-")
    _, host = read_announcement(file, remote=remote)
    page = fetch_announced_page(file, remote=remote)
    if page is not None and page.get("role") == role:
        yield ServiceView(f"{role} {index}", role, page)
        return
    if host and (role != "learner" or not remote):
        yield ServiceView(host, ELSEWHERE_ROLE, note=host)
    if not host or role == "learner":
        log, end = file.parents[1] / run_files.LOGS / f"{file.stem}.log", read_status(file).end
        note = in_line(str(end), LAST_LINE) if end else (read_last_lines(log) or ["no answer"])[-1]
        code, finished = (end.code, end.state == "finished") if end else (None, False)
        yield ServiceView(
            f"{role} {index}", role, silent_s=UNREACHABLE, code=code, note=note[:LAST_LINE], finished=finished
        )
