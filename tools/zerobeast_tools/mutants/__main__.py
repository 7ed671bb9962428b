"""How many small faults in the product the tests notice: `make mutants`.

    python -m zerobeast_tools.mutants        150 faults, drawn by seed 1
    python -m zerobeast_tools.mutants --room zerobeast/rl/ops --count 30 tests/unit/test_vtrace.py   of a room, by tests

All unit and integration tests run once in a copy of the tree, with coverage of each test by itself; that is kept until
the tree changes. Then each fault is made in a copy, and of the tests that passed and ran its line those are started
that run the least else, until one fails. A fault that no test notices survives; one with which tests do not end in time
hangs, which on a busy machine may mean nothing; one in a line that only other processes of tests run is counted apart.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import coverage

from zerobeast.common.errors import BeastError
from zerobeast.common.process.terminal import write
from zerobeast_tools.mutants import recorder
from zerobeast_tools.mutants.sites import Mutant, apply_mutant, modules, mutants

TOP = Path(__file__).resolve().parents[3]
TESTS = ("tests/unit", "tests/integration")
CONFIG = "coverage.ini"
MOST_S, MOST_TESTS = 30.0, 60
BUSY_FACTOR = 3  #: times as long as in the first run may tests take
KILLED, HUNG, SURVIVED, OUT_OF_REACH = "killed", "hung", "survived", "in no test's own process"
PYTEST = (sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "-p")
Lines = Mapping[tuple[str, int], Sequence[str]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=150, help="number of faults")
    parser.add_argument("--seed", type=int, default=1, help="seed of the draw")
    parser.add_argument("--room", default="", help="draw only from this folder, such as zerobeast/rl/ops")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="number of parallel workers")
    parser.add_argument("--cache", type=Path, default=TOP / "build/mutants", help="folder of what the tests cover")
    parser.add_argument("tests", nargs="*", default=TESTS, help="files or folders of tests (%(default)s)")
    given = parser.parse_args(argv)
    drawn = draw_mutants(given.count, given.seed, given.room)
    data = measure_coverage(given.tests, given.cache, given.workers)
    branches, lines = shares_of(data)
    write(f"the tests run {branches:.1f} % of the product's branches and {lines:.1f} % of its lines")
    fates = judge_mutants(drawn, index_coverage(data), given.workers)
    write(report(fates))
    return 0


def draw_mutants(count: int, seed: int, room: str) -> list[Mutant]:
    """Faults, of each room about as many as its share of all that could be made.

    Each is drawn or not for itself, so that most are the same ones after a change of the product.
    """
    found = [each for path in modules(TOP) for each in mutants(path, TOP) if each.path.startswith(room)]
    drawn = sorted(found, key=lambda each: each.rank(seed))[:count]
    return sorted(drawn, key=lambda each: (each.path, each.line))


def measure_coverage(tests: Sequence[str], cache: Path, workers: int) -> Path:
    """The file of which lines and branches each test runs in its own process; beside it stands how long each took."""
    files = [*modules(TOP), *sorted((TOP / "tests").rglob("*.py"))]
    sources = [path.read_bytes() for path in files]
    tree = cache / hashlib.sha256(b"\0".join([*sources, *map(str.encode, tests)])).hexdigest()[:16]
    data, durations = tree.with_suffix(".coverage"), tree.with_suffix(".jsonl")
    if not durations.exists():
        shutil.rmtree(tree, ignore_errors=True)
        config = _copy(tree) / CONFIG
        config.write_text(f"[run]\nbranch = true\ndata_file = {data}\nsource = {tree}\nomit = {tree}/tests/*\n")
        unfinished = durations.with_suffix(".part")
        unfinished.unlink(missing_ok=True)
        run = (*PYTEST, recorder.__name__, "-n", str(workers), "--dist", "loadfile", "-W", "default")
        options = ("--cov", "--cov-context=test", f"--cov-config={config}", "--cov-report=")
        environ = _environ(tree) | {recorder.FILE: str(unfinished)}
        done = subprocess.run((*run, *options, *tests), cwd=tree, env=environ, check=False)
        if done.returncode not in (0, 1):  # all tests have run
            raise BeastError(f"pytest ended with {done.returncode}: what the tests run is not known")
        unfinished.rename(durations)
    return data


def shares_of(data: Path) -> tuple[float, float]:
    """Percentages of branches and of lines that any test runs, without those of tools, which have smoke tests alone."""
    stored = coverage.Coverage(config_file=str(data.with_suffix("") / CONFIG))
    stored.load()
    with tempfile.TemporaryDirectory() as place:
        stored.json_report(outfile=f"{place}/report", omit=[f"{data.with_suffix('')}/tools/*"])
        total = json.loads(Path(place, "report").read_bytes())["totals"]
    return 100 * total["covered_branches"] / total["num_branches"], 100 * total["covered_lines"] / total[
        "num_statements"
    ]


def index_coverage(data: Path) -> Lines:
    """The tests that run each line, those first that run the least else: they are about it."""
    tree = os.path.realpath(data.with_suffix(""))
    durations = data.with_suffix(".jsonl").read_text(encoding="utf-8").splitlines()
    seconds = dict(json.loads(line) for line in durations)
    stored = coverage.CoverageData(str(data))
    stored.read()
    found: dict[tuple[str, int], set[str]] = defaultdict(set)
    for file in stored.measured_files():
        path = str(Path(os.path.realpath(file)).relative_to(tree))
        for line, contexts in stored.contexts_by_lineno(file).items():
            found[path, line] |= {name.partition("|")[0] for name in contexts} & seconds.keys()
    breadth = Counter(test for tests in found.values() for test in tests)
    return {place: _in_time(sorted(tests, key=lambda test: breadth[test]), seconds) for place, tests in found.items()}


def judge_mutants(drawn: Sequence[Mutant], covering: Lines, workers: int) -> dict[Mutant, str]:
    """What becomes of each fault; a line for each is printed as it is known."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as place, ThreadPoolExecutor(workers) as pool:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(workers):
            trees.put(_copy(Path(place) / str(number)))

        def fate(mutant: Mutant) -> str:
            tree = trees.get()
            try:
                result = try_mutant(mutant, covering.get((mutant.path, mutant.line), ()), tree)
            finally:
                trees.put(tree)
            write(f"{result:8} {mutant}")
            return result

        return dict(zip(drawn, pool.map(fate, drawn), strict=True))


def try_mutant(mutant: Mutant, tests: Sequence[str], tree: Path) -> str:
    """Whether tests fail, or hang, with this fault in a copy of the tree."""
    if not tests:
        return OUT_OF_REACH
    path = tree / mutant.path
    source = path.read_bytes()
    path.write_bytes(apply_mutant(mutant, source))
    try:
        return _fate((*PYTEST, "no:xdist", "-x", *tests), tree)
    finally:
        path.write_bytes(source)


def _fate(run: Sequence[str], tree: Path) -> str:
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        run, cwd=tree, env=_environ(tree), stdout=quiet, stderr=quiet, start_new_session=True
    ) as process:
        try:
            return KILLED if process.wait(MOST_S) else SURVIVED
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return HUNG


def _in_time(tests: Iterable[str], seconds: Mapping[str, float]) -> list[str]:
    """The first of these tests, fastest first, of which `MOST_S` is enough for all."""
    found, left_s = list[str](), MOST_S
    for test in tests:
        if seconds[test] * BUSY_FACTOR < left_s and len(found) < MOST_TESTS:
            found.append(test)
            left_s -= seconds[test] * BUSY_FACTOR
    return sorted(found, key=lambda test: seconds[test])


def _environ(tree: Path) -> dict[str, str]:
    places = os.pathsep.join((str(tree), str(tree / "tools")))
    return os.environ | {"PYTHONPATH": places, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}


def _copy(tree: Path) -> Path:
    listing = (shutil.which("git") or "git", "ls-files", "-coz", "--exclude-standard")
    listed = subprocess.run(listing, cwd=TOP, check=True, stdout=subprocess.PIPE).stdout
    for name in filter(None, listed.decode().split("\0")):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(TOP / name, tree / name, follow_symlinks=False)
    return tree


def report(fates: Mapping[Mutant, str]) -> str:
    """The share of noticed faults, of each room and of all."""
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant, fate in fates.items():
        for room in (mutant.room, "all"):
            rooms[room][fate] += 1
    lines = [f"\n{'room':24}{'faults':>8}{'killed':>8}{'hung':>8}{'survived':>10}{'out of reach':>14}"]
    whole = rooms.pop("all", Counter())
    for room, counts in (*sorted(rooms.items()), ("all", whole)):
        columns = (counts[KILLED], counts[HUNG], counts[SURVIVED], counts[OUT_OF_REACH])
        lines.append("{:24}{:8}{:8}{:8}{:10}{:14}".format(room, counts.total(), *columns))
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
