"""The tool behind `make mutants`: which small faults it makes in a module, and how it counts what became of them."""

from pathlib import Path

from zerobeast_tools.mutants.__main__ import KILLED, SURVIVED, report
from zerobeast_tools.mutants.sites import applied, mutants

MODULE = """\
def limited(value: int, most: int = 9) -> int:
    if value > most:
        return most
    return value
"""


def test_faults_are_found_in_bodies_of_functions_and_each_changes_one_place(tmp_path: Path) -> None:
    path = tmp_path / "rl" / "ops" / "limit.py"
    path.parent.mkdir(parents=True)
    path.write_text(MODULE)
    found = mutants(path, tmp_path)
    assert [(each.line, each.new) for each in found] == [(2, "(value >= most)"), (3, "return None"), (4, "return None")]
    first, second, third = found
    assert applied(first, path.read_bytes()).decode() == MODULE.replace("value > most", "(value >= most)")
    assert report({first: KILLED, second: SURVIVED, third: KILLED}).splitlines()[-1].split()[:3] == ["all", "3", "2"]
