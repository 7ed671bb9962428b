"""`beast bench replay` on little data: what it reports and what it leaves behind, but not how fast it is."""

from pathlib import Path

import pytest

from zerobeast.common.config.load import load
from zerobeast.tools.bench.replay import measure


@pytest.mark.parametrize(("env", "kinds"), [("ALE/Pong-v5", ["none", "zstd"]), ("CartPole-v1", ["none"])])
def test_a_replay_has_figures_for_every_way_of_storing(tmp_path: Path, env: str, kinds: list[str]) -> None:
    config = load(["--env", env, "--root", str(tmp_path), "--actor.envs_per_group", "2"], {})
    found = measure(config, 0.01, stored=400, played=120)
    assert [each.what.split()[2] for each in found] == [f"{kind}:" for kind in kinds for _ in range(3)]
    assert all(each.value > 0 and each.yardstick for each in found)
    assert all(each.met for each in found if each.goal)
    assert len([each for each in found if each.goal]) == len(kinds) * (env != "CartPole-v1")
    assert list(tmp_path.iterdir()) == []
