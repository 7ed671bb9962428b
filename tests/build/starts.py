"""Runs as `beast train` resolves them before they start, at one moment of a day."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

from zerobeast.cli.train import TrainFlags
from zerobeast.common.config.load import Request, dump, load_config
from zerobeast.common.settings.tree import RunConfig
from zerobeast.plan.resolution import ResolvedRun, resolve_run

NOW = datetime(2026, 1, 31, 23, 59, 58, tzinfo=UTC)


def resolve_new_run(
    root: Path, *flags: str, environ: Mapping[str, str] = MappingProxyType({})
) -> ResolvedRun[TrainFlags]:
    """A run in this folder of runs, with these flags."""
    return resolve_run(Request.of_flags(["--root", str(root), *flags], environ, TrainFlags), NOW)


def make_run_folder(root: Path, name: str, *flags: str) -> RunConfig:
    """A run whose folder has its settings and nothing else."""
    config = load_config(["--root", str(root), "--name", name, *flags], {})
    config.folder.mkdir(parents=True)
    (config.folder / "config.yaml").write_text(dump(config))
    return config
