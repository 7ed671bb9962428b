"""What a report shows that is likely to trouble a run: a sentence for each."""

from collections.abc import Iterator, Mapping

from zerobeast.diagnosis.facts import Facts

MIN_FILES = 1024  #: enough for 500 clients of a server, with two connections each
MAX_DRIFT_MS_S = 5.0  #: what correcting a clock step by step may add
FIRST_YEAR = "2026"  #: in which this was written


def find_troubles(report: Mapping[str, Facts]) -> Iterator[str]:
    """Sentences about the sections `machine` and `run` of a report."""
    machine, run = report["machine"], report["run"]
    if machine["cores"] < 2:
        yield f"cores {machine['cores']:g}: expected at least 2, because playing and learning take turns on one"
    if (files := machine["open files at most"]) < MIN_FILES:
        yield f"open files at most {files}: expected {MIN_FILES} or more; raise `ulimit -Hn`"
    if machine["time"] < FIRST_YEAR or abs(machine["clock drift, ms/s"]) > MAX_DRIFT_MS_S:
        yield f"time {machine['time']}, drift {machine['clock drift, ms/s']:g} ms/s: expected a clock that is right"
    if "error" in run:
        yield f"the run of {run['env']} has failed: {run['error']}"
