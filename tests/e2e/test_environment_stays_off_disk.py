"""A process's environment variables are written nowhere, except for those that are settings."""

from pathlib import Path

from tests.build.commands import SMALL
from tests.helpers import finished, python

SECRET = "hunter2-correct-horse-battery-staple"


def test_no_environment_variable_is_written_except_settings(tmp_path: Path) -> None:
    variables = {
        "TMPDIR": str(tmp_path),
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "DATABASE_URL": f"postgres://user:{SECRET}@host/db",
        "BEAST_SEED": "48611",
    }
    flags = ("--root", tmp_path / "runs", "--name", "x", *SMALL, "--total_steps", "1000", "--plain")
    code, out, error = finished(python("-m", "zerobeast", "train", *flags, variables=variables, cwd=tmp_path))
    assert code == 0, error
    written = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {".yaml", ".pt", ".csv", ".log", ".json"} <= {path.suffix for path in written}
    assert any("tfevents" in path.name for path in written)
    assert [path for path, content in written.items() if SECRET.encode() in content] == []
    assert SECRET not in out + error
    assert b"seed: 48611" in written[Path("runs/x/config.yaml")], "a variable that is a setting is kept as one"
