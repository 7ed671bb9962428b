"""`make nightly-status`: when the nightly tests last passed."""

from pathlib import Path

from tests.nightly import record


def test_it_says_when_all_passed_and_on_which_commit(tmp_path: Path) -> None:
    file = tmp_path / "build" / "nightly.json"
    assert "never" in record.last(file)
    record.passed(file)
    assert f"at commit {record.commit()};" in record.last(file)
