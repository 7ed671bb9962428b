"""`beast doctor`: what it says of a machine, and that a failed run fails it."""

import json
from pathlib import Path
from typing import Any

import pytest

from zerobeast.cli import doctor
from zerobeast.common.errors import BeastError
from zerobeast.common.process.hardware import cpu_model, installed_memory_bytes, instruction_sets
from zerobeast.diagnosis import trial
from zerobeast.diagnosis.facts import describe_machine
from zerobeast.diagnosis.troubles import find_troubles

X86 = "processor : 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu avx avx2 avx512_bf16 amx_bf16\n\nprocessor : 1\n"
ARM = "processor : 0\nFeatures : fp asimd sve bf16\n"
RUN = {"env": "CartPole-v1", "agent steps/s": 5000}
MACHINE = {
    "cores": 4.0,
    "open files at most": 65_536,
    "time": "2027-01-01T00:00:00Z",
    "clock drift, ms/s": 0.1,
}


@pytest.mark.parametrize(
    ("text", "model", "sets"),
    [
        (X86, "Some CPU @ 2 GHz", ["avx", "avx2", "avx512_bf16", "amx_bf16"]),
        (ARM, None, ["asimd", "sve", "bf16"]),
        (None, None, []),
    ],
)
def test_a_cpu_is_described_as_far_as_the_system_tells(
    text: str | None, model: str | None, sets: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "cpuinfo"
    if text:
        file.write_text(text)
    assert (cpu_model(file), instruction_sets(file)) == (model, sets)


def test_this_machine_is_described() -> None:
    found = describe_machine()
    assert [*find_troubles({"machine": {**found, "cores": 2, "open files at most": 1024}, "run": RUN})] == []
    assert found["memory, MiB"] == installed_memory_bytes() >> 20 > 100


@pytest.mark.parametrize(
    ("machine", "run", "words"),
    [
        ({}, {}, []),
        ({"cores": 1.5}, {}, ["cores 1.5"]),
        ({"open files at most": 256, "clock drift, ms/s": -9.0}, {}, ["at most 256", "drift -9"]),
        ({"time": "1970-01-01T00:01:02Z"}, {}, ["time 1970"]),
        ({}, {"error": "no room"}, ["no room"]),
    ],
)
def test_what_is_likely_to_trouble_a_run_is_named(
    machine: dict[str, Any], run: dict[str, Any], words: list[str]
) -> None:
    found = [*find_troubles({"machine": MACHINE | machine, "run": RUN | run})]
    assert len(found) == len(words)
    assert all(word in sentence for word, sentence in zip(words, found, strict=True))


@pytest.mark.parametrize(
    ("error", "expected"),
    [(BeastError("no room"), "no room"), (ModuleNotFoundError(name="torch"), "zerobeast[train]")],
)
def test_a_run_that_fails_fails_the_command(
    error: Exception, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_arguments: object) -> None:
        raise error

    monkeypatch.setattr(trial, "_train", fail)
    assert doctor.main(["--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert expected in report["run"]["error"]
    assert expected in report["warnings"][-1]
    assert doctor.main([]) == 1
    assert f"warning: the run of {trial.ENV} has failed" in capsys.readouterr().out
