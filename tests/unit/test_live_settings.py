"""Settings that change while a run trains are those of each step from then on, and others are refused."""

from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from tests.build.errors import refuses
from zerobeast.common.config import live
from zerobeast.common.settings.tree import RunConfig
from zerobeast.services.learner.checkpoint import pack_state, unpack_state
from zerobeast.testing.small_run import SmallRun, are_same, config_of, first_env

OTHERS: dict[str, Any] = {"max_grad_norm": 0.1, "trace_decay": 0.5, "epochs": 3}
SMALL: dict[str, dict[str, Any]] = {
    "ppo": {"minibatches": 3, "value_clip": 0.1, "target_kl": 1e-4},
    "vmpo": {"target_period": 1},
}


def of(folder: Path, algo: str, **settings: Any) -> RunConfig:
    """A small run. With RMSProp, unlike with Adam, the size of gradients matters."""
    return config_of(algo, {"optimizer": "rmsprop", **SMALL.get(algo, {}), **settings}, root=str(folder))


@pytest.mark.parametrize("algo", ["impala", "ppo", "vmpo", "sac"])
def test_a_change_is_that_of_a_run_that_resumes_with_the_new_value(tmp_path: Path, algo: str) -> None:
    env, own = first_env(algo), {} if algo in ("td3", "sac") else {"optimizer": "rmsprop", **SMALL.get(algo, {})}
    with SmallRun(algo, env, own, tmp_path / "base") as base:
        batches, settings = base.rollouts(4), base.config.algorithm
        base.learn_from(batches[:2])
        state = pack_state(base.trainer.state())
        assert "learning_rate" in settings.live()

        def policy(change: dict[str, Any], *, at_once: bool) -> Any:
            root = Path(mkdtemp(dir=tmp_path))
            base.copy_folder(root)
            with SmallRun(algo, env, {**own, **(change if at_once else {})}, root) as run:
                run.seq = base.seq
                run.trainer.load(root, unpack_state(state))
                wanted = {f"{algo}.{name}": value for name, value in change.items()}
                live.apply_changes(run.trainer.config, live.check_changes(run.trainer.config, wanted))
                run.learn_from(batches[2:])
                return run.policy()

        values = {name: getattr(settings, name) for name in settings.live()}
        change = {name: OTHERS.get(name, 2 * value or 0.3) for name, value in values.items() if name != "schedule"}
        change["schedule"] = "linear" if values["schedule"] == "constant" else "constant"
        changed = policy(change, at_once=False)
        assert are_same(changed, policy(change, at_once=True))
        assert not are_same(changed, policy({}, at_once=True))


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
    with refuses(path, value=value):
        live.check_changes(of(tmp_path, algo, **adapts), {path: value})


def test_a_curriculum_goes_at_the_pace_set_but_several_learners_do_not_change_one_by_one(tmp_path: Path) -> None:
    config = of(tmp_path, "ppo")
    ranks = config.model_copy(update={"learner": config.learner.model_copy(update={"ranks": 2})})
    with refuses("learner.ranks", value=2):
        live.check_changes(ranks, {"ppo.entropy_cost": 0.0})
    config = config.model_copy(update={"env": config.env.model_copy(update={"options": {"deep": ["{progress}"]}})})
    with refuses("env.progress", value=1.5):
        live.check_changes(config, {"env.progress": 1.5})
    live.apply_changes(config, live.check_changes(config, {"env.progress": 0.75, "ppo.entropy_cost": 0.5}))
    assert (config.env.progress, config.algorithm.entropy_cost) == (0.75, 0.5)
    assert "progress" not in config.env.terms()
