"""An algorithm without a network, a learner without training and a client, for tests of the broker."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.helpers import free_port, in_thread, wait_until
from zerobeast.common.config.process import Instance
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.transport import CHUNK_BYTES, ClientPort, Context, WeightsPublisher, checksum, random_id
from zerobeast.common.wire import ArraySpace, EnvSpec, PolicySpec, act_record, step_record
from zerobeast.common.wire.messages import Header, Kind, Plane
from zerobeast.common.wire.stream import Reply, Stream
from zerobeast.rl.acting.inference import Inference
from zerobeast.rl.algos.policy_gradient.actor_critic import logits_and_value
from zerobeast.rl.nets.network import Network, StepInput
from zerobeast.rl.nets.weights import flatten, layout_id
from zerobeast.rl.ops.tree import tree_map
from zerobeast.rl.protocol import Act, Sampling
from zerobeast.services.broker.service import Broker

Rows = NDArray[Any]
ECHO_ENV = EnvSpec("Echo-v0", ArraySpace.box((3,)), ArraySpace.discrete(60_000))
ECHO_POLICY = PolicySpec(logits_and_value(3), 2)


class EchoNet(Network):
    """One weight, and ballast so that a version spans several chunks."""

    core_size = ECHO_POLICY.core_size

    def __init__(self, weight: float = 0.0, ballast: int = 400_000) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), weight))
        self.ballast = nn.Parameter(torch.zeros(ballast))


class EchoAlgorithm:
    """An algorithm whose answers show what it saw.

    logits: the newest frame's first values, each + 1. value: the weight. action: last action + 1. core: + 1.
    """

    policy = ECHO_POLICY

    def __init__(self, env: EnvSpec = ECHO_ENV) -> None:
        if env.action.kind != "discrete":
            raise ConfigError(f"echo: actions are {env.action.kind}, expected discrete")
        self.env = env
        self.seen: list[StepInput] = []
        self.seeds: list[int] = []  #: initial seeds of the generators that drew actions

    def network(self) -> EchoNet:
        return EchoNet()

    def act(self, net: EchoNet, inputs: StepInput, core: Tensor, sampling: Sampling) -> tuple[Act, Tensor]:
        self.seen.append(tree_map(torch.clone, inputs))
        self.seeds.append(sampling.generator.initial_seed())
        batch = inputs.first.shape[1]
        newest = inputs.obs[0] if self.env.frame_stack == 1 else inputs.obs[0][:, -1]
        logits = newest.reshape(batch, -1)[:, :3].float() + 1
        return Act(inputs.last_action[0] + 1, {"logits": logits, "value": net.weight.expand(batch)}), core + 1


def serving(algorithm: Any, max_rows: int = 4, seed: int = 1) -> Inference:
    """What a broker on the CPU computes with, for 10 environments or `max_rows`."""
    found = Inference(algorithm, max_rows=max_rows, device=torch.device("cpu"), dtype=torch.float32, seed=seed)
    found.reserve(max(max_rows, 10))
    return found


def ask(inference: Inference, rows: Rows, slots: list[int]) -> Rows:
    """Infer on the step records of some environments; returns their act records."""
    inference.batch.rows[: len(rows)] = rows.view(np.uint8).reshape(len(rows), -1)
    inference.batch.slots[: len(rows)] = slots
    inference.submit(len(rows), with_cores=True)
    answers = inference.acts[: len(rows)].view(act_record(inference.algorithm.env, inference.algorithm.policy).dtype)
    return answers[:, 0].copy()


class FakeLearner:
    """Publishes versions whose single weight is their number."""

    def __init__(self, context: Context, endpoint: str) -> None:
        self.port = WeightsPublisher(context, endpoint)
        self.epoch = random_id()

    def publish(self, version: int, net: nn.Module | None = None, **changes: int) -> None:
        net = EchoNet(float(version)) if net is None else net
        flat = flatten(net)
        body = {
            "version": version,
            "layout": layout_id(net),
            "n_bytes": flat.nbytes,
            "checksum": checksum(flat),
            "n_chunks": -(-flat.nbytes // CHUNK_BYTES),
        } | changes
        self.port.publish(Header(Kind.WEIGHTS, 0, epoch=self.epoch, body=tuple(body.values())), flat)

    def close(self) -> None:
        self.port.close()


class Answer(NamedTuple):
    """One ACT message."""

    header: Header
    rows: np.ndarray  #: with the layout of act_record
    cores: np.ndarray | None

    @property
    def version(self) -> int:
        return int(self.header.body[0])


class Client:
    """A client of the broker with one stream, driven by hand. `rows` is what the next request carries."""

    answer: Answer

    def __init__(self, stage: "Stage", n: int, *, env: EnvSpec = ECHO_ENV) -> None:
        self.stage, self.n, self.env = stage, n, env
        self.port = ClientPort(stage.context, Plane.INFERENCE, stage.config.broker.endpoint, random_id())
        self.rows = np.zeros(n, step_record(env).dtype)
        self.stream = Stream(self.port.sender, 0, {"env": env.to_wire(), "num_envs": n}, "the broker")

    def turn(self) -> Reply | None:
        """Send what is due and take at most one message; the learner serves new subscribers."""
        self.stage.learner.port.welcome()
        now = time.monotonic()
        due = self.stream.due(now)
        if due and self.port.send(due[0], *due[1]):
            self.stream.note_sent(now)
        incoming = self.port.receive()
        if incoming is None:
            return None
        frames = incoming.frames()
        reply = self.stream.accept(incoming.header, now)
        if reply is Reply.ANSWER:
            policy = PolicySpec.from_wire(self.stream.terms["policy"])
            rows = np.frombuffer(frames[0], act_record(self.env, policy).dtype)
            cores = np.frombuffer(frames[1], np.float32).reshape(self.n, -1) if len(frames) > 1 else None
            self.answer = Answer(incoming.header, rows, cores)
        return reply

    def until(self, wanted: Reply) -> None:
        wait_until(lambda: self.turn() is wanted)

    def request(self, *, core: bool = False) -> None:
        self.stream.request(Kind.INFER, (core,), (self.rows,), time.monotonic())

    def ask(self, *, core: bool = False) -> Answer:
        self.request(core=core)
        self.until(Reply.ANSWER)
        return self.answer

    def bye(self) -> None:
        self.port.send(Header(Kind.BYE, self.port.sender, self.stream.slot))

    def close(self) -> None:
        self.port.close()


class Stage:
    """A broker in a thread, its learner, and clients that are closed at the end."""

    def __init__(self, context: Context, config: RunConfig, algorithms: list[EchoAlgorithm], index: int = 0) -> None:
        self.context = context
        self.config = config
        self.algorithms = algorithms
        self.broker = Broker(config, Instance(index=index))
        self.clients: list[Client] = []
        self.learner = FakeLearner(context, config.learner.endpoint)

    def client(self, n: int = 1, **more: Any) -> Client:
        self.clients.append(Client(self, n, **more))
        return self.clients[-1]

    def welcomed(self, n: int = 1, **more: Any) -> Client:
        """A client with a session, once the broker has weights."""
        client = self.client(n, **more)
        client.until(Reply.WELCOME)
        wait_until(lambda: (client.turn(), self.broker.report()["policy_version"] >= 0)[1])
        return client

    def refused(self, reason: str) -> int:
        return int(self.broker.report().get("refused_by_reason", {}).get(reason, 0))

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.learner.close()


OpenStage = Callable[..., Stage]  #: type of the fixture `open_stage`


@contextmanager
def stage(
    context: Context,
    monkeypatch: pytest.MonkeyPatch,
    endpoint: str,
    versions: tuple[int, ...] = (1,),
    seed: int = 1,
    index: int = 0,
    **settings: Any,
) -> Iterator[Stage]:
    """The broker `index` of a run, which serves the echo algorithm, and a learner that has published `versions`."""
    algorithms: list[EchoAlgorithm] = []

    def make(_config: RunConfig, env: EnvSpec) -> EchoAlgorithm:
        algorithms.append(EchoAlgorithm(env))
        return algorithms[-1]

    monkeypatch.setattr("zerobeast.services.broker.sessions.make_algorithm", make)
    learner = f"{endpoint}l" if endpoint.startswith("ipc") else f"tcp://127.0.0.1:{free_port()}"
    config = RunConfig.model_validate(
        {
            "seed": seed,
            "actor": {"envs_per_group": 1},
            "broker": {"endpoint": endpoint, "device": "cpu", "precision": "float32", "max_batch_rows": 16, **settings},
            "learner": {"endpoint": learner},
        }
    )
    with ExitStack() as stack:
        found = Stage(context, config, algorithms, index)
        stack.callback(found.close)
        for version in versions:
            found.learner.publish(version)
        stack.enter_context(in_thread(found.broker))
        yield found
