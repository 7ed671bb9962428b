"""RemoteVectorEnv shows what a local vector environment shows, and the client below it refuses invalid answers."""

from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from typing import Any

import gymnasium
import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.build.envs import COUNTER
from tests.build.planes import run_env_server
from zerobeast.clients import env_client
from zerobeast.clients.env_client import EnvClient
from zerobeast.clients.env_session import EnvAnswer
from zerobeast.clients.remote import part
from zerobeast.clients.remote.cluster import ClusterVectorEnv
from zerobeast.clients.remote.vector_env import RemoteVectorEnv, RowsVectorEnv
from zerobeast.common.errors import BeastError, ConfigError, PeerLost, RemoteProtocolError
from zerobeast.common.transport import Context
from zerobeast.common.wire import ArraySpace, EnvSpec, step_record
from zerobeast.common.wire.messages import Plane
from zerobeast.services.envserver.catalogue import make_env
from zerobeast.testing.script_server import Client, serve_script

PARTS = "tests.build.envs:Parts"
CARTPOLE, PENDULUM, PONG = "CartPole-v1", "Pendulum-v1", "PongNoFrameskip-v4"
FRAMES = 80  #: after which a game of Pong is truncated
NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
STEPS = 60  #: between two resets
SPEC = EnvSpec("Fake-v0", ArraySpace.box((2,)), ArraySpace.discrete(2))
#: id -> number of environments and of processes, settings
WORK: dict[str, tuple[int, int, dict[str, Any]]] = {
    CARTPOLE: (5, 0, {}),
    PARTS: (5, 2, {}),
    PENDULUM: (2, 0, {"kwargs": {"max_episode_steps": 15}}),
    PONG: (2, 0, {"max_episode_frames": FRAMES, "frame_stack": 1}),
}


@contextmanager
def remote(ipc: str, env_id: str, num_envs: int = 3, *, workers: int = 0, **kwargs: Any) -> Iterator[RemoteVectorEnv]:
    server = run_env_server(ipc, workers=workers, in_process=not workers)
    with server, closing(RemoteVectorEnv(ipc, env_id, num_envs, **kwargs)) as envs:
        yield envs


def local(env_id: str, num_envs: int, mode: AutoresetMode = NEXT_STEP, **kwargs: Any) -> Any:
    """A vector environment in this process, made by the backend that an env-server would use."""
    if env_id == PONG:
        settings: dict[str, Any] = {"reward_clipping": False, "use_fire_reset": False, "num_threads": 1}
        settings["autoreset_mode"] = NEXT_STEP if mode is DISABLED else mode  # the emulator has no such mode
        return AtariVectorEnv("pong", num_envs, stack_num=1, max_num_frames_per_episode=FRAMES, **settings)
    if env_id == CARTPOLE and mode is NEXT_STEP:
        return gymnasium.make_vec(env_id, num_envs, vectorization_mode="vector_entry_point")
    return SyncVectorEnv([lambda: make_env(env_id, kwargs)] * num_envs, autoreset_mode=mode)


def assert_same(found: Any, expected: Any, where: tuple[Any, ...]) -> None:
    """Assert equal structure, shapes and values; floats are compared as float32, since float64 travels as that."""
    if isinstance(expected, dict | tuple):
        assert isinstance(found, dict if isinstance(expected, dict) else tuple), where
        keys = list(expected) if isinstance(expected, dict) else range(len(expected))
        assert len(found) == len(keys), where
        for key in keys:
            assert_same(found[key], expected[key], (*where, key))
    elif getattr(expected, "dtype", None) == np.dtype(object):
        for i, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert (one is None) == (other is None), where
            if one is not None:
                assert_same(one, other, (*where, i))
    else:
        assert np.shape(found) == np.shape(expected), where
        one, other = (np.float32(each) if np.asarray(each).dtype.kind == "f" else each for each in (found, expected))
        np.testing.assert_array_equal(one, other, err_msg=str(where))


def shown(obs: Any, env_id: str) -> Any:
    return obs[:, 0] if env_id == PONG else obs  # a stack of one


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("env_id", list(WORK))
def test_every_step_is_that_of_a_local_vector_environment(ipc: str, env_id: str, mode: AutoresetMode) -> None:
    num_envs, workers, settings = WORK[env_id]
    ends = 0
    with (
        remote(ipc, env_id, num_envs, workers=workers, env=settings, autoreset_mode=mode) as envs,
        closing(local(env_id, num_envs, mode, **settings.get("kwargs", {}))) as twin,
    ):
        assert envs.single_action_space == twin.single_action_space
        assert envs.action_space == twin.action_space
        assert (envs.spec and envs.spec.id, envs.metadata) == (env_id, {"autoreset_mode": mode})
        if env_id != PONG:  # a local one has no stack of one
            assert envs.single_observation_space == twin.single_observation_space
            assert envs.observation_space == twin.observation_space
        envs.action_space.seed(3)
        native = env_id == CARTPOLE and mode is NEXT_STEP
        seeds = [1, None, 9 if native else [9, None, 9, 3, 3][:num_envs]]
        for t in range(3 * STEPS if mode is NEXT_STEP else STEPS):
            if t % STEPS == 0:
                seed = seeds[t // STEPS]
                theirs = np.array([9, -1]) if env_id == PONG and isinstance(seed, list) else seed
                (obs, _), (expected, _) = envs.reset(seed=seed), twin.reset(seed=theirs)
                assert_same(obs, shown(expected, env_id), (t, "reset"))
                assert envs.observation_space.contains(obs)
            actions = envs.action_space.sample()
            obs, *found, infos = envs.step(actions)
            expected, *wanted, their_infos = twin.step(actions)
            assert_same((obs, *found), (shown(expected, env_id), *wanted), (t,))
            over = np.logical_or(*found[1:])
            ends += over.sum()
            if env_id == PONG:
                assert_same(infos["lives"], their_infos["lives"], (t, "lives"))
            else:
                assert_same(infos, their_infos, (t, "infos"))
            if mode is DISABLED and over.any():
                (obs, _), (expected, _) = (each.reset(options={"reset_mask": over}) for each in (envs, twin))
                assert_same(obs, shown(expected, env_id), (t, "partial reset"))
    assert ends > num_envs


def test_a_stack_has_the_newest_frames_and_repeats_the_first_of_an_episode(ipc: str) -> None:
    limit = {"max_episode_frames": FRAMES}
    with (
        remote(ipc, PONG, 1, env=limit) as envs,
        closing(RemoteVectorEnv(ipc, PONG, 1, env=limit | {"frame_stack": 1})) as twin,
    ):
        (obs, _), (single, _) = envs.reset(seed=1), twin.reset(seed=1)
        frames, over = [single[0]] * 4, False
        for _ in range(50):
            assert (obs[0] == frames).all()
            actions = envs.action_space.sample()
            (obs, *_), (single, _, terminated, truncated, _) = envs.step(actions), twin.step(actions)
            frames = [single[0]] * 4 if over else [*frames[1:], single[0]]
            over = bool(terminated[0] or truncated[0])


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_an_environment_that_fails_is_truncated_at_its_last_observation(ipc: str, mode: AutoresetMode) -> None:
    with remote(ipc, COUNTER, 2, autoreset_mode=mode, env={"kwargs": {"raise_at": 3}}) as envs:
        envs.reset(seed=0)
        for _ in range(2):
            obs, *_, infos = envs.step([100, 100])
            assert "lost" not in infos
        obs, reward, terminated, truncated, infos = envs.step([101, 101])
        assert infos["lost"].all()
        assert truncated.all()
        assert not terminated.any()
        assert not reward.any()
        last = [[2, 0], [2, 1]]
        if mode is SAME_STEP:
            assert [final.tolist() for final in infos["final_obs"]] == last
            assert obs[:, 0].tolist() == [0, 0]
        else:
            assert obs.tolist() == last
            if mode is DISABLED:
                envs.reset(options={"reset_mask": truncated})
            obs, reward, terminated, truncated, infos = envs.step([101, 101])
            assert "lost" not in infos
            assert not (terminated | truncated).any()
            assert obs[:, 0].tolist() == [1, 1], "in NEXT_STEP one step of the new episode was not seen"
            assert reward.any() == (mode is DISABLED)


def test_unsupported_calls_and_bad_arguments_are_refused(ipc: str) -> None:
    with remote(ipc, PARTS, 2, autoreset_mode=DISABLED) as envs:
        assert envs.get_attr("action_space") == (envs.single_action_space,) * 2
        assert envs.call("render_mode") == (None, None)
        for wrong, named in (
            (lambda: envs.get_attr("np_random"), "'np_random'"),
            (lambda: envs.call("seed", 1), "methods"),
            (lambda: envs.set_attr("spec", 1), "'spec'"),
            (envs.render, "frames"),
            (envs.step_wait, "step_wait"),
            (lambda: envs.step(envs.action_space.sample()), "before reset"),
            *((lambda seed=seed: envs.reset(seed=seed), "seed is") for seed in ([1, 2, 3], [1, -2], 2**31)),
            *(
                (lambda mask=mask: envs.reset(options={"reset_mask": mask}), named)
                for mask, named in ((np.ones(2, bool), "before"), ([1], "booleans"))
            ),
        ):
            with pytest.raises(BeastError, match=named):
                wrong()
        envs.reset(seed=1)
        right = envs.action_space.sample()
        envs.step_async(right)
        with pytest.raises(ConfigError, match="step_wait"):
            envs.reset(seed=5)
        assert (envs.step_wait()[0]["done"] == right["aim"]).all()
        aim, pick = right["aim"], right["pick"]
        for actions, path in (
            (aim, "action"),
            (right | {"pick": 5}, "action.pick"),
            *((right | {"aim": bad}, "action.aim") for bad in (aim[:1], aim * np.nan, [["a", "b"]] * 2, [[1], [1, 2]])),
            *((right | {"pick": (bad, pick[1])}, "action.pick.0") for bad in ([2, 6], [0, 0.5])),
        ):
            with pytest.raises(ConfigError, match=f"^{path} "):
                envs.step(actions)
        while not (over := np.logical_or(*envs.step(envs.action_space.sample())[2:4])).any():
            pass
        with pytest.raises(ConfigError, match=f"environment {np.argmax(over)} "):
            envs.step(right)
        envs.close()
        envs.close()
        with pytest.raises(ConfigError, match="closed"):
            envs.reset()


def test_environments_that_cannot_be_opened_are_refused(ipc: str) -> None:
    with pytest.raises(PeerLost, match="timeout_s is"):
        RemoteVectorEnv(ipc, CARTPOLE, 2, timeout_s=0.2)
    with run_env_server(ipc, max_envs=10, in_process=True):
        for env_id, num_envs, given, named in (
            (CARTPOLE, 2, {"autoreset_mode": "never"}, "autoreset_mode"),
            (CARTPOLE, 0, {}, "num_envs"),
            ("CartPol-v1", 2, {}, "CartPole-v1"),
            (COUNTER, 2, {"env": {"kwargs": {"x": 1}}}, "'x'"),
            (CARTPOLE, 2, {"env": {"frame_stak": 1}}, "env.frame_stak"),
        ):
            with pytest.raises(ConfigError, match=named):
                RemoteVectorEnv(ipc, env_id, num_envs, **given)
        with pytest.raises(PeerLost, match="no room"):
            RemoteVectorEnv(ipc, CARTPOLE, 11, timeout_s=0.5)


class Script:
    """A source of two environments with scripted answers, each (obs, lost, flags)."""

    spec = EnvSpec("Script-v0", ArraySpace.box((), "|u1"), ArraySpace.discrete(2))

    def __init__(self, *answers: tuple[list[int], list[bool], dict[str, list[bool]]]) -> None:
        self._answers = iter(answers)

    def begin_reset(self, seed: int | None, options: dict[str, Any] | None, mask: Any) -> None: ...
    def begin_step(self, actions: Any) -> None: ...
    def close(self) -> None: ...

    def finish(self) -> EnvAnswer:
        obs, lost, flags = next(self._answers)
        rows = np.zeros(2, step_record(self.spec).dtype)
        for name, values in {"obs": obs, "reward": np.not_equal(obs, 0), **flags}.items():
            rows[name] = values
        return EnvAnswer(rows, {}, [], np.array(lost))


def test_an_environment_that_is_back_while_others_reset_is_shown_and_not_reported_lost() -> None:
    no, yes = False, True
    script = Script(
        ([0, 0], [no, no], {"first": [yes, yes]}),
        ([1, 0], [no, yes], {}),
        ([2, 0], [no, yes], {"terminated": [yes, no]}),
        ([0, 0], [no, no], {"first": [yes, yes]}),  # answers the reset of the first environment
        ([1, 1], [no, no], {}),
    )
    with closing(RowsVectorEnv(lambda *_: script, "Script-v0", 2, None, AutoresetMode.SAME_STEP, None)) as envs:
        envs.reset()
        seen = [envs.step(np.zeros(2, int)) for _ in range(3)]
    assert [obs.tolist() for obs, *_ in seen] == [[1, 0], [0, 0], [1, 1]]
    assert [terminated.tolist() for _, _, terminated, _, _ in seen] == [[no, no], [yes, no], [no, no]]
    assert [truncated.tolist() for _, _, _, truncated, _ in seen] == [[no, yes], [no, no], [no, no]]
    assert [infos["lost"].tolist() if "lost" in infos else None for *_, infos in seen] == [[no, yes], None, None]


def test_a_server_that_stays_silent_is_reported_long_before_the_time_is_up(
    ipc: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(env_client, "QUIET_S", 0.1)
    monkeypatch.setattr(part, "SILENCE_S", 0.1)
    with pytest.raises(PeerLost):
        RemoteVectorEnv(ipc, "CartPole-v1", 1, timeout_s=0.4)
    with pytest.raises(PeerLost):
        ClusterVectorEnv([ipc], "CartPole-v1", 1, timeout_s=0.8)
    assert [ipc in message and "0.1 s" in message for message in caplog.messages] == [True, True]


ROWS = np.zeros(3, step_record(SPEC).dtype)


@pytest.mark.parametrize(
    ("infos", "frames", "named"),
    [
        ({}, (), "OBS"),
        ({}, (ROWS,), "OBS"),
        ({1: ROWS["reward"][:2]}, (ROWS[:2],), "info 1"),
        ({"x": ROWS["reward"][:2], "_x": ROWS["reward"][:2]}, (ROWS[:2],), "info '_x'"),
        ({"x": ROWS["reward"]}, (ROWS[:2],), "info 'x'"),
    ],
)
def test_a_bad_answer_is_named(
    context: Context, ipc: str, infos: dict[Any, Any], frames: tuple[Any, ...], named: str
) -> None:
    fake = Client(Plane.STEPS, {"env": SPEC.to_wire()}, lambda _asked: (([], infos), frames), lambda *_: nullcontext())
    with serve_script(fake, ipc, context=context):
        client = EnvClient(context, ipc, {}, 2, seed=0)
        with pytest.raises(RemoteProtocolError, match=named):
            client.reset()
        with pytest.raises(PeerLost):
            client.step([0, 0])
        client.close()
