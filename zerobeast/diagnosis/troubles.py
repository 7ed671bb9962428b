"""What a report shows that is likely to trouble a run: a sentence for each."""

from collections.abc import Iterator, Mapping

from zerobeast.diagnosis.facts import Facts

MIN_FILES = 1024  #: enough for 500 clients of a server, with two connections each
FIRST_YEAR = "2026"  #: in which this was written


def find_troubles(report: Mapping[str, Facts]) -> Iterator[str]:
    """Sentences about the sections `machine` and `run` of a report."""
    machine, run = report["machine"], report["run"]
    numbers = {name: value for name, value in machine.items() if not isinstance(value, str)}
    if numbers.get("cores", 2) < 2:
        yield f"cores {machine['cores']:g}: expected at least 2, because playing and learning take turns on one"
    if (files := numbers.get("open files at most", MIN_FILES)) < MIN_FILES:
        yield f"open files at most {files}: expected {MIN_FILES} or more; raise `ulimit -Hn`"
    if machine["time"] < FIRST_YEAR:
        yield f"time {machine['time']}: expected a clock that is right"
    if "error" in run:
        yield f"the run of {run['env']} has failed: {run['error']}"
