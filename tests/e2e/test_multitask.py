"""One policy learns tasks that pay very differently, through all four services."""

import json
from pathlib import Path

import pytest

from tests.helpers import finished, python

pytestmark = pytest.mark.timeout(300)

ENVS = "tests.e2e.task_envs"


def test_a_task_that_pays_ten_thousand_times_as_much_does_not_drown_the_other(tmp_path: Path) -> None:
    """A batch holds rows of both. With one shared value and unit the cheap one stays near chance."""
    run = ("--root", str(tmp_path), "--env", f"{ENVS}:Cheap-v0,{ENVS}:Dear-v0")
    flags = "--plain --name both --total_steps 40000 --learner.batch_size 16 --impala.popart true"
    flags += " --impala.reward_scale 1 --impala.discount 0.5"
    code, out, error = finished(python("-m", "zerobeast", "train", *run, *flags.split()))
    assert code == 0, out[-3000:] + error[-3000:]
    code, out, error = finished(python("-m", "zerobeast", "evaluate", "both", *run, "--episodes", "30", "--json"))
    assert code == 0, error[-3000:]
    cheap, dear = map(json.loads, out.splitlines())
    assert [cheap["env"], dear["env"]] == [f"{ENVS}:Cheap-v0", f"{ENVS}:Dear-v0"]
    assert cheap["mean_return"] >= 6.0, "the most is 8, chance 2"
    assert dear["mean_return"] >= 60_000


def test_environments_that_are_not_alike_end_the_run_with_a_sentence(tmp_path: Path) -> None:
    envs = f"{ENVS}:Cheap-v0,{ENVS}:Wide-v0"
    code, _, error = finished(python("-m", "zerobeast", "train", "--plain", "--root", tmp_path, "--env", envs))
    assert (code, error.count("\n")) == (2, 1)
    assert all(part in error for part in (f"{ENVS}:Cheap-v0", f"{ENVS}:Wide-v0", "obs.shape", "[8]", "[12]"))
