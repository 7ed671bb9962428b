"""Settings that change while a run trains are those of each step from then on, and others are refused."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.build.control import control_config, trainer_of
from tests.build.control import trained as trained_in_a_box
from tests.build.errors import refused
from tests.build.learners import CPU, ENV, run_config, same, trained
from zerobeast.common.config import live
from zerobeast.common.settings.tree import RunConfig
from zerobeast.services.learner.update import Trainer

BOXES = ("sac",)
OTHERS: dict[str, Any] = {"max_grad_norm": 0.1, "trace_decay": 0.5, "epochs": 3}
SMALL: dict[str, dict[str, Any]] = {
    "ppo": {"epochs": 2, "minibatches": 3, "value_clip": 0.1, "target_kl": 1e-4},
    "vmpo": {"target_period": 1},
}


def of(folder: Path, algo: str, **settings: Any) -> RunConfig:
    """A small run. With RMSProp, unlike with Adam, the size of gradients matters."""
    if algo in BOXES:
        return control_config(folder, algo, replay_size=1000, **settings)
    common = run_config(folder).model_dump()
    common.pop("impala")
    own = {"optimizer": "rmsprop", **SMALL.get(algo, {}), **settings}
    return RunConfig.model_validate({**common, "algo": algo, algo: own, "net": {"torso": "mlp"}})


def make(config: RunConfig) -> Trainer:
    return trainer_of(config) if config.section in BOXES else Trainer(config, CPU, ENV)


def learn(trainer: Trainer, seeds: range) -> Any:
    """The state after some batches."""
    return (trained_in_a_box if trainer.config.section in BOXES else trained)(trainer, seeds).state()


@pytest.mark.parametrize("algo", ["impala", "ppo", "vmpo", "sac"])
def test_a_change_is_that_of_a_run_that_resumes_with_the_new_value(tmp_path: Path, algo: str) -> None:
    config = of(tmp_path, algo)
    base, settings, replay = learn(make(config), range(2)), config.algorithm, tmp_path / "run/store/replay"
    rows = replay.read_bytes() if replay.exists() else b""
    assert "learning_rate" in settings.live()

    def weights(change: dict[str, Any], *, at_once: bool) -> Any:
        if rows:
            replay.write_bytes(rows)
        changed, before = (settings.model_copy(update=each) for each in (change, {}))
        trainer = make(config.model_copy(update={"algorithm": changed if at_once else before}))
        trainer.load(tmp_path, deepcopy(base))  # whose tensors it may go on with
        own = {f"{algo}.{name}": value for name, value in change.items()}
        live.change(trainer.config, live.checked(trainer.config, own))
        return learn(trainer, range(2, 4))["model"]

    values = {name: getattr(settings, name) for name in settings.live()}
    change = {name: OTHERS.get(name, 2 * value or 0.3) for name, value in values.items() if name != "schedule"}
    change["schedule"] = "linear" if values["schedule"] == "constant" else "constant"
    changed = weights(change, at_once=False)
    assert same(changed, weights(change, at_once=True))
    assert not same(changed, weights({}, at_once=True))


@pytest.mark.parametrize(
    ("algo", "path", "value"),
    [
        ("ppo", "ppo.minibatches", 2),
        ("ppo", "ppo.learning_rate", -1),
        ("impala", "impala.entropy_cost", 0.5),
        ("ppo", "env.progress", 0.5),
    ],
)
def test_what_may_not_change_is_refused(tmp_path: Path, algo: str, path: str, value: float) -> None:
    adapts = {"entropy_target": 0.5} if algo == "impala" else {}
    with refused(path, value=value):
        live.checked(of(tmp_path, algo, **adapts), {path: value})


def test_a_curriculum_goes_at_the_pace_that_is_set_but_several_learners_do_not_change_one_by_one(
    tmp_path: Path,
) -> None:
    config = of(tmp_path, "ppo")
    ranks = config.model_copy(update={"learner": config.learner.model_copy(update={"ranks": 2})})
    with refused("learner.ranks", value=2):
        live.checked(ranks, {"ppo.entropy_cost": 0.0})
    config = config.model_copy(update={"env": config.env.model_copy(update={"options": {"deep": ["{progress}"]}})})
    with refused("env.progress", value=1.5):
        live.checked(config, {"env.progress": 1.5})
    live.change(config, live.checked(config, {"env.progress": 0.75, "ppo.entropy_cost": 0.5}))
    assert (config.env.progress, config.algorithm.entropy_cost) == (0.75, 0.5)
    assert "progress" not in config.env.terms()
