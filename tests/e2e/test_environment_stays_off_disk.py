"""A process's environment variables are written nowhere, except for those that are settings."""

from pathlib import Path

from tests.helpers import finished, python

SECRET = "hunter2-correct-horse-battery-staple"


def test_no_environment_variable_is_written_except_settings(tmp_path: Path) -> None:
    runs, elsewhere = tmp_path / "runs", tmp_path / "tmp"
    elsewhere.mkdir()
    variables = {
        "TMPDIR": str(elsewhere),
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "DATABASE_URL": f"postgres://user:{SECRET}@host/db",
        "BEAST_SEED": "48611",
    }
    flags = ["--root", str(runs), "--name", "x", "--env", "CartPole-v1", "--total_steps", "2000"]
    command = ("-m", "zerobeast", "train", *flags, "--plain")
    code, out, error = finished(python(*command, variables=variables, cwd=tmp_path))
    assert code == 0, error
    written = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    kinds = {path.suffix for path in written}
    assert {".yaml", ".pt", ".csv", ".log", ".json"} <= kinds
    assert any("tfevents" in path.name for path in written)
    assert [path for path, content in written.items() if SECRET.encode() in content] == []
    assert SECRET not in out + error
    assert b"seed: 48611" in written[Path("runs/x/config.yaml")], "a variable that is a setting is kept as one"
