"""Seeds and options of RESET, and infos of OBS, do what they do in a local gymnasium vector environment."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.build.envservers import running
from tests.helpers import wait_until
from zerobeast.clients.env_client import EnvClient
from zerobeast.common.errors import ConfigError, LocalProtocolError
from zerobeast.common.transport import Context
from zerobeast.common.wire.messages import MAX_OPTIONS_BYTES

INFO = "tests.build.envs:Info-v0"
PONG = "PongNoFrameskip-v4"
N = 5  #: makes two parts of Atari games, and two slices of worker processes
LEFT_OUT = {"text", "none", "list", "large", "nd", "_hidden", "deep", "x" * 101, "object"}  #: infos of `Info`


def numbers(infos: dict[str, Any]) -> dict[str, Any]:
    """The infos of a local vector environment that can travel, in comparable form."""
    kept = {name: each for name, each in infos.items() if name.removeprefix("_") not in {*LEFT_OUT, "hidden"}}
    return {
        name: numbers(each) if isinstance(each, dict) else each.tolist()
        for name, each in kept.items()
        if name not in ("t", "_t")  # the duration of an episode
    }


def test_options_reach_every_environment_at_that_reset_alone(context: Context, ipc: str) -> None:
    with running(ipc, workers=2), EnvClient(context, ipc, {"id": INFO}, N, seed=0, infos=True) as client:
        assert client.reset(options={"start": 7})["obs"].tolist() == [[7]] * N
        assert client.reset()["obs"].tolist() == [[0]] * N
        assert not client.infos["options"].any()


def test_a_process_that_ends_in_a_reset_is_replaced_by_one_that_is_reset_in_the_same_way(
    context: Context, ipc: str, tmp_path: Path
) -> None:
    file, twin = tmp_path / "gone", gymnasium.make_vec(INFO, N, vectorization_mode="sync")
    with running(ipc, workers=2) as server, EnvClient(context, ipc, {"id": INFO}, N, seed=0) as client:
        client.reset()
        rows = client.reset(seed=9, options={"start": 4, "exit_once": str(file)})
        assert file.exists()
        assert rows["obs"].tolist() == [[4]] * N
        twin.reset(seed=9, options={"start": 4})
        np.testing.assert_array_equal(client.step([0] * N)[0]["obs"], twin.step(np.zeros(N, np.int64))[0])
        wait_until(lambda: server.report()["env_errors"] > 0)


@pytest.mark.parametrize(
    ("env_id", "wrong", "error", "named"),
    [
        (PONG, {"options": {}}, ConfigError, "options"),
        (INFO, {"seed": 2**31}, ConfigError, "seed"),
        (INFO, {"seed": ["x"]}, ConfigError, r"seed\[0\]"),
        (INFO, {"options": {"start": bytes(MAX_OPTIONS_BYTES)}}, ConfigError, str(MAX_OPTIONS_BYTES)),
        (INFO, {"options": {"start": object()}}, LocalProtocolError, "object"),
        (INFO, {"options": {"start": "x"}}, ConfigError, "ValueError"),  # which ends the session
    ],
)
def test_invalid_seeds_and_options_are_refused(
    context: Context, ipc: str, env_id: str, wrong: dict[str, Any], error: type[Exception], named: str
) -> None:
    with running(ipc, in_process=True), EnvClient(context, ipc, {"id": env_id}, 1, seed=0) as client:
        with pytest.raises(error, match=named):
            client.reset(**wrong)


def test_infos_are_the_numeric_ones_of_a_local_vector_environment(context: Context, ipc: str) -> None:
    twin = gymnasium.make_vec(INFO, N, vectorization_mode="sync")
    with running(ipc, workers=2) as server:
        with EnvClient(context, ipc, {"id": INFO}, N, seed=5, infos=True) as client:
            client.reset(options={"start": 1})
            _, infos = twin.reset(seed=5, options={"start": 1})
            assert numbers(client.infos) == numbers(infos)
            ended = 0
            for t in range(40):
                _, episodes, found = client.step([t % 2] * N)
                *_, infos = twin.step(np.full(N, t % 2))
                assert numbers(found) == numbers(infos)
                ended += len(episodes)
                assert len(episodes) == np.count_nonzero(found.get("_episode", False))
            assert ended > N
            wait_until(lambda: server.report()["infos_left_out"] > 40 * len(LEFT_OUT))
        before = server.report()["infos_left_out"]
        with EnvClient(context, ipc, {"id": INFO}, N, seed=5) as client:
            client.reset()
            assert client.step([0] * N)[2] == {}, "they were not asked for"
        assert server.report()["infos_left_out"] == before, "and closed sessions keep counting"


def test_an_invalid_mask_is_refused_and_the_session_goes_on(context: Context, ipc: str) -> None:
    some = np.arange(N) == 2
    with running(ipc, in_process=True):
        with EnvClient(context, ipc, {"id": "CartPole-v1"}, N, seed=0) as client:
            client.reset()
            for wrong in ({"mask": some}, {"seed": [*range(N)]}):  # they are reset all together
                with pytest.raises(ConfigError, match="reset_m"):
                    client.reset(**wrong)
            assert client.step([0] * N)[0]["reward"].all()
        with EnvClient(context, ipc, {"id": "CartPole-v1"}, N, seed=0, reset_masks=True) as client:
            with pytest.raises(ConfigError, match="RESET"):
                client.reset(mask=some)
            client.reset()
            for mask in (np.zeros(N, np.bool_), np.ones(N + 1, np.bool_), np.ones(N, np.int64)):
                with pytest.raises(ConfigError, match=f"mask: .* {N} booleans"):
                    client.reset(mask=mask)
            assert client.reset(mask=some)["first"].all(), "all are at their first"
