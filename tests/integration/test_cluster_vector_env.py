"""ClusterVectorEnv over three env-servers, of which one is in a process of its own and is killed or stopped."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from signal import SIGKILL, SIGSTOP
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.build.envs import COUNTER
from tests.build.planes import run_env_server
from tests.helpers import free_port, killed_at_last, python
from zerobeast import ClusterVectorEnv
from zerobeast.common.errors import ConfigError, PeerLost

N, LENGTH = 7, 6
SHARE = slice(2, 4)  #: the environments of the server that fails
MEANT = np.isin(np.arange(N), (2, 3))
LOWEST = np.full(N, 100)  #: actions of `Counter`


class Servers:
    """Three env-servers, of which the second fails."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.endpoints = [f"tcp://127.0.0.1:{free_port()}" for _ in range(3)]
        self.sound = stack.enter_context(ExitStack())
        self.sound.enter_context(run_env_server(self.endpoints[0], in_process=True))  # no two: each sets variables
        self.start(2, self.sound)
        self.process = self.start(1, stack)

    def start(self, which: int, stack: ExitStack) -> Any:
        command = ("-m", "zerobeast.services.envserver", "--envserver.endpoint", self.endpoints[which])
        process = python(*command, "--envserver.in_process", "true", stdout=None, stderr=None)
        stack.enter_context(killed_at_last(process))
        return process

    def begin(self, fault: signal.Signals) -> None:
        self.process.send_signal(fault)

    def end(self, fault: signal.Signals) -> None:
        if fault == SIGSTOP:
            self.process.send_signal(signal.SIGCONT)
        else:
            self.start(1, self.stack)


@pytest.fixture
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(stack)


def opened(endpoints: list[str], **kwargs: Any) -> Any:
    settings = {"step_timeout_s": 1.5, "env": {"kwargs": {"length": LENGTH}}}
    return closing(ClusterVectorEnv(endpoints, COUNTER, N, **settings | kwargs))


def stepped_until(envs: Any, done: Callable[[Any], bool]) -> Any:
    while not done(found := envs.step(LOWEST)):
        time.sleep(0.02)
    return found


@pytest.mark.parametrize(("fault", "mode"), [(SIGKILL, AutoresetMode.NEXT_STEP), (SIGSTOP, AutoresetMode.SAME_STEP)])
def test_a_lost_server_is_masked_until_it_is_back(servers: Servers, fault: signal.Signals, mode: AutoresetMode) -> None:
    with opened(servers.endpoints, autoreset_mode=mode) as envs:
        assert envs.reset(seed=5)[0].tolist() == [[0, 5 + i] for i in range(N)]
        assert envs.reset(seed=range(N)[::-1])[0].tolist() == [[0, N - 1 - i] for i in range(N)]
        for count in range(1, 4):
            obs, *_, infos = envs.step(LOWEST)
            assert obs[:, 0].tolist() == [count] * N
            assert "lost" not in infos
        servers.begin(fault)
        obs, reward, terminated, truncated, infos = envs.step(LOWEST + 1)
        assert obs[:, 0].tolist() == np.where(MEANT, 3, 4).tolist(), "where they were seen last"
        assert reward.tolist() == (~MEANT).tolist()
        assert truncated.tolist() == infos["lost"].tolist() == MEANT.tolist()
        assert not terminated.any()
        if mode is AutoresetMode.SAME_STEP:
            assert [final if final is None else final[0] for final in infos["final_obs"]] == [
                3 if meant else None for meant in MEANT
            ]
        for count in (5, 6):
            obs, reward, terminated, truncated, infos = envs.step(LOWEST + 1)
            assert infos["lost"].tolist() == MEANT.tolist()
            assert reward.tolist() == (~MEANT).tolist()
            assert truncated.tolist() == ([False] * N if count < LENGTH else (~MEANT).tolist()), "once for the lost"
            assert not terminated.any()
            assert (obs[SHARE, 0] == 3).all()
        servers.end(fault)
        obs, reward, terminated, truncated, infos = stepped_until(envs, lambda found: "lost" not in found[4])
        assert (obs[SHARE, 0] == 0).all(), "the first of an episode"
        assert not np.stack([reward, terminated, truncated])[:, SHARE].any()
        assert (envs.step(LOWEST)[0][SHARE, 0] == 1).all()


def test_lost_environments_are_remade_on_servers_that_answer(servers: Servers) -> None:
    with opened(servers.endpoints, on_loss="remake") as envs:
        envs.reset(seed=5)
        servers.begin(SIGSTOP)
        assert envs.step(LOWEST)[4]["lost"].tolist() == MEANT.tolist()
        obs, *_ = stepped_until(envs, lambda found: "lost" not in found[4])
        assert (obs[SHARE, 0] == 0).all()
        for count in range(1, 4):
            assert (envs.step(LOWEST)[0][SHARE, 0] == count).all()
        servers.end(SIGSTOP)  # so that it can terminate


def test_a_loss_in_a_reset_shows_there_or_in_the_next_step(servers: Servers) -> None:
    with opened(servers.endpoints) as envs:
        envs.reset(seed=5)
        servers.begin(SIGSTOP)
        first = np.arange(N) < 3
        _, infos = envs.reset(options={"reset_mask": first})
        assert infos["lost"].tolist() == (MEANT & first).tolist()
        *_, truncated, infos = envs.step(LOWEST)
        assert truncated.tolist() == (MEANT & ~first).tolist()
        assert infos["lost"].tolist() == MEANT.tolist()
        assert envs.reset(seed=1)[1]["lost"].tolist() == MEANT.tolist()
        servers.end(SIGSTOP)
        assert (stepped_until(envs, lambda found: "lost" not in found[4])[0][SHARE, 0] == 0).all()


def test_when_all_servers_are_lost_there_is_a_mask_and_in_the_end_an_error(servers: Servers) -> None:
    with opened(servers.endpoints) as envs:
        envs.reset()
        servers.begin(SIGKILL)
        servers.sound.close()
        assert envs.step(LOWEST)[4]["lost"].all()
        envs.source.timeout_s = 2.0
        with pytest.raises(PeerLost, match="none of 3"):
            stepped_until(envs, lambda _: False)


def test_a_reset_keeps_its_seed_in_a_new_server_and_time_before_step_wait_does_not_count(ipc: str) -> None:
    with run_env_server(ipc, in_process=True):
        envs = opened([ipc], step_timeout_s=1.0).__enter__()
        envs.reset(seed=5)
    with run_env_server(ipc, in_process=True), closing(envs):
        obs, infos = envs.reset(seed=9)
        assert obs[:, 1].tolist() == list(range(9, 9 + N))
        assert "lost" not in infos
        envs.step_async(LOWEST)
        time.sleep(1.2)
        assert "lost" not in envs.step_wait()[4]


def test_bad_arguments_and_absent_servers_are_refused(ipc: str) -> None:
    other = f"{ipc}2"
    with run_env_server(ipc, in_process=True), run_env_server(other, in_process=True):
        for endpoints, settings, error, named in (
            (ipc, {}, ConfigError, "1 to 7"),
            ([ipc] * 8, {}, ConfigError, "1 to 7"),
            ([ipc, other, f"{ipc}3"], {"timeout_s": 1.0}, PeerLost, "s3 for 1 s"),
            ([ipc, other], {"env": {"kwargs": {"x": 1}}}, ConfigError, "TypeError"),
            ([ipc], {"on_loss": "panic"}, ConfigError, "on_loss"),
        ):
            with pytest.raises(error, match=named):
                opened(endpoints, **settings)
        with opened([ipc, other]) as envs:
            envs.reset()
            with pytest.raises(ConfigError, match=r"environment 5 .* 110"):
                envs.step(np.where(np.arange(N) == 5, 110, 100))
            assert envs.step(LOWEST)[0][:, 0].tolist() == [1] * N, "none of them has lost an environment"
