"""`python -m zerobeast.services.<role> health`: checks a process from outside, as a container's health check does.

Exit code: 0 all its services take work, 1 one does not, 2 unreachable. A stalled service still takes work; `beast
health` reports whether the run trains. Imports little, because a health check runs every few seconds.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence

from zerobeast.common.health import figures
from zerobeast.common.health.figures import ServiceView, number
from zerobeast.common.health.pages import fetch_page
from zerobeast.common.health.service_table import as_json, format_table, hop_table
from zerobeast.common.health.verdict import Verdict, is_ready
from zerobeast.common.process.roles import SERVICES_BY_PROCESS
from zerobeast.common.process.terminal import is_terminal, write
from zerobeast.common.text import printable

WATCH_PERIOD_S = 2.0
UNREACHABLE = float("inf")
CLEAR = "\x1b[H\x1b[2J"


def main(role: str, argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Check the services of a process, or those whose pages --endpoint names; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog=f"python -m zerobeast.services.{role} health",
        description="Show the state of a running service. Exit code: 0 it accepts work, 1 it does not, 2 unreachable.",
    )
    add_flags(parser)
    flags = parser.parse_args(argv)
    expected = role if len(SERVICES_BY_PROCESS[role]) == 1 else ""
    pages = [(address, expected) for address in flags.endpoint or ()] or own_pages(role, environ)
    return show(
        lambda: [view_at(*page) for page in pages],
        lambda services: Verdict("", good=all(map(is_ready, services))),
        watch=flags.watch,
        as_json_text=flags.json,
    )


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Flags that every health command has."""
    parser.add_argument(
        "--endpoint", action="append", metavar="HOST:PORT", help="address of a health page; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print all data as JSON")
    parser.add_argument("--watch", action="store_true", help=f"repeat every {WATCH_PERIOD_S:g} s until Ctrl-C")


def own_pages(process: str, environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """The address of each health page of the process in this container, and the role of its service."""
    host, port = environ.get("BEAST_HEALTH__HOST", ""), environ.get("BEAST_HEALTH__PORT", "")
    ports = (
        [str(int(port) + number) for number in range(len(SERVICES_BY_PROCESS[process]))] if port.isdecimal() else [port]
    )
    return [(f"{host}:{port}", role) for port, role in zip(ports, SERVICES_BY_PROCESS[process], strict=False)]


def view_at(address: str, role: str = "") -> ServiceView:
    """The service whose page is at host:port, if it has this role; an empty role matches any."""
    page = fetch_page(address)
    found = str(page.get("role", "")) if page else ""
    if page is not None and role in ("", found):
        return ServiceView(found if role else f"{found} {address}", found, page)
    note = f"no answer from {address}" if page is None else f"the service at {address} has role {found or 'unknown'}"
    return ServiceView(role or address, role, silent_s=UNREACHABLE, note=note)


def show(
    look: Callable[[], Sequence[ServiceView]],
    judge: Callable[[Sequence[ServiceView]], Verdict],
    *,
    watch: bool,
    as_json_text: bool,
) -> int:
    """Print what `look` finds, once or until Ctrl-C; returns the last exit code."""
    while True:
        services = look()
        verdict = judge(services)
        text = render(services, verdict, as_json_text=as_json_text)
        clear = CLEAR if watch and not as_json_text and is_terminal() else ""
        write("", end=clear)
        write(text)
        if not watch:
            return exit_code(services, verdict)
        try:
            time.sleep(WATCH_PERIOD_S)
        except KeyboardInterrupt:
            return exit_code(services, verdict)


def render(services: Sequence[ServiceView], verdict: Verdict, *, as_json_text: bool) -> str:
    """The tables with the verdict under them, or JSON in one line."""
    if as_json_text:
        return json.dumps(as_json(services, verdict), default=str)
    pages = [view.page for view in services if view.role == "learner" and view.page]
    progress = [figures.format_progress(max(1, int(number(page, "total_steps") or 0)), page) for page in pages]
    known = [" | ".join(each.values()) for each in progress]
    parts = format_table(services), hop_table(services), *known, printable(verdict.sentence)
    return "\n\n".join(part for part in parts if part)


def exit_code(services: Sequence[ServiceView], verdict: Verdict) -> int:
    """0 if all is well, 1 if it is not, 2 if no service could be reached."""
    if services and verdict.good:
        return 0
    return 1 if any(view.page for view in services) else 2
