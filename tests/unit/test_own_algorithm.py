"""What docs/own_algorithm.md promises to those who write an algorithm: its hooks are there, and do what it says."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.build.batches import algorithm_of, make_batch
from tests.build.errors import refused
from tests.helpers import ROOT
from zerobeast.common.config.load import dump, load
from zerobeast.common.plugins import find
from zerobeast.common.settings.tree import RunConfig
from zerobeast.rl.data.batch import Batch
from zerobeast.rl.factory import begin_learning

PAGE = (ROOT / "docs" / "own_algorithm.md").read_text()


@pytest.mark.parametrize("part", [torch.optim.Adam([torch.zeros(1, requires_grad=True)]), 3])
def test_a_part_that_no_checkpoint_can_hold_is_refused_before_the_first_step(part: Any) -> None:
    algorithm = algorithm_of("ppo")
    learning = algorithm.learning(net := algorithm.network())
    learning.parts |= {"opt": part}
    algorithm.learning = lambda _: learning
    with refused("opt"):
        begin_learning(algorithm, RunConfig(algo="ppo"), net)


def test_a_coefficient_may_fall_over_the_run_and_is_a_number_when_it_is_used(tmp_path: Path) -> None:
    flags = ["--algo", "ppo", "--ppo.entropy_cost", "linear 0.02 0", "--ppo.learning_rate", "linear 1e-3 1e-4"]
    config: Any = load(flags, {})
    (tmp_path / "run.yaml").write_text(dump(config))
    assert load(["--config", str(tmp_path / "run.yaml")], {}) == config
    assert config.algorithm.at(0.5).entropy_cost == 0.01
    assert config.algorithm.learning_rate_at(500, 1000) == pytest.approx(5.5e-4)
    for wrong in ("linear 0.1", "linear 0.1 -1", "falling 1 0"):
        with refused("ppo.entropy_cost", value=wrong):
            load(["--algo", "ppo", "--ppo.entropy_cost", wrong], {})


@pytest.mark.parametrize("name", ["ppo", "impala"])
def test_a_schedule_is_followed_by_the_agent_steps_of_the_run(name: str) -> None:
    def weights(cost: Any, before: int) -> list[torch.Tensor]:
        algorithm = algorithm_of(name, entropy_cost=cost, learning_rate=0.01)
        torch.manual_seed(1)
        net = algorithm.network()
        net.agent_steps.fill_(before)
        learning = algorithm.learning(net)
        learning.add(SimpleNamespace(batch=make_batch(algorithm)), before)
        learning.step(before + 100)
        return [each.detach() for each in net.parameters()]

    for before, cost, same in ((0, 0.5, True), (500, 0.3, True), (500, 0.5, False)):
        assert all(map(torch.equal, weights("linear 0.5 0.1", before), weights(cost, before))) == same


def test_the_methods_and_fields_that_the_page_names_exist() -> None:
    rows = re.findall(r"^\| `([\w.:]+)` \| `(\w+)\(", PAGE, re.MULTILINE)
    assert len(rows) > 10
    for home, method in rows:
        assert callable(getattr(find("", f"zerobeast.rl.{home}", "page"), method)), (home, method)
    fields = re.search(r"### Fields of a batch\n(.*?)\n#", PAGE, re.DOTALL)
    assert fields is not None
    assert set(re.findall(r"^\| `(\w+)`", fields[1], re.MULTILINE)) >= set(Batch._fields) - {"origin"}
