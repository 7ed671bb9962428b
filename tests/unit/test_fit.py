"""Whether a run fits its environment is known from the environment's description, and is said with what would fit."""

from dataclasses import replace
from typing import Any

import pytest

from tests.build.batches import ENDLESS, HYBRID, MINATAR, REACH
from tests.build.nets import CARTPOLE
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.wire import ArraySpace, EnvSpec, PolicySpec
from zerobeast.common.wire.records import oversize, rollout_record
from zerobeast.rl.factory import make_algorithm
from zerobeast.rl.fit import refuse_unfit

ATARI = EnvSpec("Pong-v0", ArraySpace.box((84, 84), "|u1"), ArraySpace.discrete(6), 4, 4)
HUGE = EnvSpec("Huge-v0", ArraySpace.box((4096, 4096, 3), "|u1"), ArraySpace.discrete(6))


def run(algo: str, net: dict[str, Any] | None = None, **settings: Any) -> RunConfig:
    return RunConfig.model_validate({"algo": algo, "net": net or {}, algo: settings})


@pytest.mark.parametrize(
    ("config", "env", "said"),
    [
        (run("sac"), CARTPOLE, r"algo sac .* CartPole-v1 .* dqn, .* ppo"),
        (run("ddpg"), replace(REACH, action=ENDLESS), "Reach-v0 .* algo a2c, impact, "),
        (run("td3"), replace(REACH, action=HYBRID), "Reach-v0 .* algo a2c, impact, impala, "),
        (run("dqn"), REACH, "algo dqn .* algo a2c, ddpg, .*, td3, vmpo$"),
        (run("sac", {"core": "lstm"}), REACH, "net.core"),
        (run("ppo", {"squash_actions": True}), replace(REACH, action=ENDLESS), "net.squash_actions"),
        (run("sac", {"torso": "deep"}), REACH, "net.torso deep"),
        (run("a2c", {"torso": "shallow"}), MINATAR, "net.torso shallow.* minatar .*10x10x4"),
        (run("vmpo"), HUGE, "Huge-v0.* 50331712 .* 16777216"),
        (run("impala", entropy_target=2.0), CARTPOLE, r"impala.entropy_target .* 0\.6931"),
    ],
)
def test_what_cannot_be_learned_is_refused_before_a_network_is_made(config: RunConfig, env: EnvSpec, said: str) -> None:
    for refuse in (refuse_unfit, make_algorithm):  # the launcher's and the services' way
        with pytest.raises(ConfigError, match=said) as refused:
            refuse(config, env)
        assert refused.value.args[0].count("; ") == 0, "one cause is said once"


def test_rollouts_too_large_to_send_are_refused_with_the_largest_that_fit() -> None:
    assert oversize(CARTPOLE, None, 20, 16) is None
    sentence = oversize(ATARI, None, 1000, 64)
    assert sentence is not None
    [envs, length] = [int(way.rpartition(" ")[2]) for way in sentence.partition("at most ")[2].split(" or ")]
    assert (oversize(ATARI, None, 1000, envs), oversize(ATARI, None, length, 64)) == (None, None)
    assert oversize(ATARI, None, 1000, envs + 1)
    assert oversize(ATARI, None, length + 1, 64)
    assert rollout_record(ATARI, PolicySpec((), 0), length).row_bytes * 64 <= 256 << 20
    assert "learner.unroll_length" in str(oversize(ATARI, None, 10**5, 64)), "one row of these is too large"
