"""The services of a run folder, in which each has left the address of its health page."""

from pathlib import Path

from zerobeast.common.errors import ConfigError
from zerobeast.common.files import run_files
from zerobeast.common.health.command import UNREACHABLE
from zerobeast.common.health.figures import ServiceView
from zerobeast.common.health.pages import announced, fetch_page
from zerobeast.common.health.verdict import ELSEWHERE
from zerobeast.discovery.containers import LAST_LINE, gather, last_words

AT_ONCE = 64  #: pages asked at a time


def services_of(folder: Path) -> list[ServiceView]:
    """One view for every service that the newest start of the run has announced, and one for all out of reach.

    Raises:
      ConfigError: there is no such run, or it never started.
    """
    if not folder.is_dir():
        raise ConfigError(f"run {folder.name!r}: there is no folder {folder}")
    files = sorted((folder / run_files.SERVICES).glob("*.json"))
    if not files:
        raise ConfigError(f"run {folder.name!r}: no service has announced itself in {folder / run_files.SERVICES}")
    views = gather(lambda file: [_view(file)], files, AT_ONCE)
    hosts = sorted({view.note for view in views if view.role == ELSEWHERE})
    note = f"services whose pages answer on their machines alone (health.host): on {', '.join(hosts)[:LAST_LINE]}"
    away = ServiceView(ELSEWHERE, ELSEWHERE, silent_s=UNREACHABLE, note=note)
    return [view for view in views if view.role != ELSEWHERE] + [away] * bool(hosts)


def newest(root: Path) -> Path | None:
    """The run in `root` whose services announced themselves last."""
    files = [file for file in root.glob(f"*/{run_files.SERVICES}/*.json") if not file.parents[1].is_symlink()]
    return max(files, key=lambda file: file.stat().st_mtime).parents[1] if files else None


def _view(file: Path) -> ServiceView:
    """The service with a status file; if its page is out of reach, its last words in the log, or its machine."""
    role, _, index = file.stem.rpartition("-")
    address, host = announced(file)
    page = fetch_page(address)
    if page is not None and page.get("role") == role:
        return ServiceView(f"{role} {index}", role, page)
    if host and role != "learner":
        return ServiceView(host, ELSEWHERE, note=host)
    log = file.parents[1] / run_files.LOGS / f"{file.stem}.log"
    note = last_words(["tail", "-n", "1", str(log)])[:LAST_LINE] if log.exists() else "no answer"
    return ServiceView(f"{role} {index}", role, silent_s=UNREACHABLE, note=note)
