"""`beast doctor`: what it says of a machine, and that a failed run fails it."""

import json
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import zerobeast.api.train
from zerobeast.cli import doctor
from zerobeast.common.errors import BeastError
from zerobeast.common.process.hardware import (
    cpu_model,
    installed_memory_bytes,
    instruction_sets,
    usable_memory_bytes,
)
from zerobeast.diagnosis import facts, trial
from zerobeast.diagnosis.facts import describe_installation, describe_machine
from zerobeast.diagnosis.troubles import find_troubles

X86 = "processor : 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu avx avx2 avx512_bf16 amx_bf16\n\nprocessor : 1\n"
ARM = "processor : 0\nFeatures : fp asimd sve bf16\n"
RUN = {"env": "CartPole-v1", "agent steps/s": 5000}
MACHINE = {
    "cores": 4.0,
    "open files at most": 65_536,
    "time": "2027-01-01T00:00:00Z",
}


@pytest.mark.parametrize(
    ("text", "model", "sets"),
    [
        (X86, "Some CPU @ 2 GHz", ["avx", "avx2", "avx512_bf16", "amx_bf16"]),
        (X86.replace("Some CPU @ 2 GHz", " "), platform.machine(), ["avx", "avx2", "avx512_bf16", "amx_bf16"]),
        (X86.replace("Some", "S\xf6me"), "S\ufffdme CPU @ 2 GHz", ["avx", "avx2", "avx512_bf16", "amx_bf16"]),
        (ARM, platform.machine(), ["asimd", "sve", "bf16"]),
        (None, platform.machine(), []),
    ],
)
def test_a_cpu_is_described_as_far_as_the_system_tells(
    text: str | None, model: str, sets: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "cpuinfo"
    if text:
        file.write_text(text, encoding="latin-1")
    assert (cpu_model(file), instruction_sets(file)) == (model, sets)


def test_this_machine_is_described() -> None:
    found = describe_machine()
    assert [*find_troubles({"machine": {**found, "cores": 2, "open files at most": 1024}, "run": RUN})] == []
    assert found["memory of the machine, MiB"] == installed_memory_bytes() >> 20 >= found["memory, MiB"] > 100
    assert not any("unknown" in str(each) or "drift" in name for name, each in found.items())


@pytest.mark.parametrize("limit", ["memory.max", "memory/memory.limit_in_bytes"])
def test_memory_is_what_the_container_may_use(limit: str, tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    for text, usable in (("2097152\n", 2 << 20), ("max\n", None), (f"{1 << 62}\n", None)):
        (tmp_path / limit).write_text(text)
        assert usable_memory_bytes(tmp_path) == (usable or installed_memory_bytes())


def test_variables_that_are_settings_are_named_without_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEAST_ALGO", "secret")
    found = describe_installation()
    assert "BEAST_ALGO" in found["variables"]
    assert "secret" not in str(found)


@pytest.mark.parametrize("kind", [OSError, ImportError, RuntimeError])
def test_a_broken_installation_loses_no_other_fact(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def broken() -> Iterator[Path]:
        raise kind("libGL")
        yield

    def fail(*_arguments: object) -> str:
        raise kind("no GPU\nhere")

    gpu = SimpleNamespace(is_available=lambda: True, get_device_name=fail)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=gpu))
    monkeypatch.setattr(facts, "cores", fail)
    monkeypatch.setattr(facts, "file_limits", fail)
    monkeypatch.setattr(trial, "private_folder", broken)
    assert doctor.main(["--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    lost = {name: each for name, each in report["machine"].items() if str(each).startswith("unknown")}
    assert lost == dict.fromkeys(
        ("cores", "gpu", "open files", "open files at most"), f"unknown: {kind.__name__}: no GPU here"
    )
    assert report["run"] == {"env": trial.ENV, "error": f"{kind.__name__}: libGL"}
    assert len(report["warnings"]) == 1


def test_each_section_is_written_before_the_next_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(doctor.SECTIONS, "run", stop)
    with pytest.raises(KeyboardInterrupt):
        doctor.main([])
    said = capsys.readouterr().out
    assert said.index("installation\n") < said.index("  extras") < said.index("machine\n") < said.index("  gpu")
    assert said.endswith("\nrun\n")


@pytest.mark.parametrize(
    ("steps", "ended", "start_s", "words"),
    [
        ([0], True, 60, "ended before its first"),
        ([0], False, -1, "within -1 s"),
        ([10, 10], False, 60, "after the first 10"),
        ([0, 10, 60], False, 60, None),
    ],
)
def test_a_run_without_steps_has_failed(
    steps: list[int], ended: bool, start_s: float, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def start(*_arguments: object, **_settings: object) -> Iterator[SimpleNamespace]:
        status = lambda: SimpleNamespace(agent_steps=steps.pop(0))  # noqa: E731
        yield SimpleNamespace(status=status, wait=lambda _s: ended, config=SimpleNamespace(algo="ppo"))

    monkeypatch.setattr(zerobeast.api.train, "start", start)
    monkeypatch.setattr(trial, "START_S", start_s)
    found = trial.try_run(0.1)
    assert words in found["error"] if words else found["agent steps"] == 50


@pytest.mark.parametrize(
    ("machine", "run", "words"),
    [
        ({}, {}, []),
        ({"cores": 1.5}, {}, ["cores 1.5"]),
        ({"open files at most": 256}, {}, ["at most 256"]),
        (dict.fromkeys(MACHINE, "unknown: OSError"), {}, []),
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
