"""`beast sweep` and `beast train --from` as a user types them, with the real services."""

import json
import os
import signal
from pathlib import Path

import psutil
import yaml

import zerobeast as zb
from tests.build.commands import SMALL, beast, done, steps
from tests.helpers import killed_at_last, wait_for_end, wait_until
from zerobeast.common.config.layers import read_yaml

SETTINGS = {
    "env": "CartPole-v1",
    "algo": "ppo",
    "net": {"hidden_size": 16},
    "total_steps": 12_000,
    "learner": {"log_every_s": 0.2, "checkpoint_every_s": 0.2},
}


def events(folder: Path, name: str) -> list[str]:
    lines = map(json.loads, (folder / "sweep.jsonl").read_text().splitlines())
    return [line["run"] for line in lines if line["event"] == name]


def services(folder: Path) -> list[psutil.Process]:
    pids = [json.loads(file.read_text())["pid"] for file in folder.glob("*/services/*.json")]
    return [psutil.Process(pid) for pid in set(pids) if psutil.pid_exists(pid)]


def test_a_sweep_goes_on_after_ctrl_c_and_after_kill_9_and_a_failed_run_stops_no_other(tmp_path: Path) -> None:
    file, folder = tmp_path / "tries.yaml", tmp_path / "tries"
    devices = {"learner.device": ["cpu", "cuda:7"]}
    file.write_text(yaml.safe_dump({"root": str(tmp_path), "settings": SETTINGS, "vary": devices, "seeds": [1, 2]}))
    names = [f"device-{device}-seed-{seed}" for seed in (1, 2) for device in ("cpu", "cuda-7")]
    first = folder / names[0]

    process = beast("sweep", file, "--cores", "1")
    with killed_at_last(process):
        wait_until(lambda: (first / "checkpoint.pt").exists(), 200)
        cores = [service.cpu_affinity() for service in services(first.parent) if service.name() != "beast"]
        process.send_signal(signal.SIGINT)
        code, out, _ = wait_for_end(process)
    assert (code, "was interrupted" in out) == (130, True), out
    assert all(len(own) == 1 for own in cores), "each run stays on its own core"
    assert services(folder) == []
    before = steps(first)

    process = beast("sweep", file)
    with killed_at_last(process):
        wait_until(lambda: steps(first) > before, 200)
        code, _, error = wait_for_end(beast("sweep", file))
        assert (code, "already running" in error) == (2, True), error
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    code, out, error = wait_for_end(beast("sweep", file))
    assert code == 1, error
    assert "| agent steps |" in out, "what is done is compared"
    *failed, remark = error.splitlines()
    assert [line.split(": ")[1] for line in failed] == [names[1], names[3]]
    assert "interval" in remark, "which is of two runs"
    assert [steps(folder / name) for name in names[::2]] == [12_000, 12_000]
    for name in names:
        assert f"{name} {'is done' if 'cpu' in name else 'failed'}" in out or name in events(folder, "end")
    assert services(folder) == []

    starts = events(folder, "start")
    assert wait_for_end(beast("sweep", file))[0] == 1
    assert sorted(events(folder, "start")[len(starts) :]) == [names[1], names[3]], "runs that are done are left alone"


def test_a_run_begins_from_another_under_changed_settings_also_from_python(tmp_path: Path) -> None:
    train = ("train", "--root", tmp_path, "--plain")
    done(*train, "--name", "base", *SMALL, "--algo", "ppo", "--total_steps", "3000")
    out = done(*train, "--from", "base", "--name", "harder", "--env.kwargs", '{"sutton_barto_reward": true}')
    assert " starts from the weights of base after 3,000 agent steps" in out
    tree = read_yaml(tmp_path / "harder" / "config.yaml", "")
    assert (tree["parent"], tree["total_steps"]) == ({"run": "base", "agent_steps": 3000}, 3000)
    assert steps(tmp_path / "harder") == 3000
    for flags in (("--from", "base", "--name", "wider", "--net.hidden_size", "32"), ("--from", "best", "--name", "x")):
        code, _, error = wait_for_end(beast(*train, *flags))
        assert (code, error.count("\n")) == (2, 1)
    run = zb.train(root=tmp_path, name="again", from_run="harder", total_steps=2000, progress=False)
    assert (run.config.parent.run, run.config.net.hidden_size) == ("harder", 16)
    assert run.config.env.kwargs
    assert run.status().agent_steps == 2000
