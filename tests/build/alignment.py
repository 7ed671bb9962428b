"""Real services around an environment that counts its steps and a policy that counts in its recurrent state."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.build.brokers import FakeLearner
from tests.helpers import in_thread, wait_until
from zerobeast.common.config.process import Instance
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.transport import Context, ServerPort
from zerobeast.common.wire import EnvSpec, PolicySpec, rollout_record
from zerobeast.common.wire.messages import Header, Kind, Plane
from zerobeast.rl.algos.policy_gradient.actor_critic import logits_and_value
from zerobeast.rl.nets.network import Network, StepInput
from zerobeast.rl.protocol import Act, Sampling
from zerobeast.services.actor.service import Actor
from zerobeast.services.broker import sessions as sessions
from zerobeast.services.broker.service import Broker
from zerobeast.services.envserver.service import EnvServer

T, N, ROLLOUTS = 7, 2, 12


class CountingAlgorithm:
    """core' = (0 at an episode's first step, else core) + 1; logits tell what the policy was shown."""

    def __init__(self, config: RunConfig, env: EnvSpec) -> None:
        self.env = env
        self.policy = PolicySpec(logits_and_value(3), 1)

    def network(self) -> Network:
        return Network()

    def act(self, net: Network, inputs: StepInput, core: Tensor, sampling: Sampling) -> tuple[Act, Tensor]:
        core = torch.where(inputs.first[0, :, None], 0.0, core)
        obs = inputs.obs[0].reshape(len(core), -1)[:, -1].float()
        logits = torch.stack([obs, inputs.last_action[0].float(), inputs.reward[0]], dim=1)
        action = (obs.long() + 1) % 3
        return Act(action, {"logits": logits, "value": core[:, 0]}), core + 1


class StubLearner(FakeLearner):
    """Publishes one version of weights and takes rollouts, acknowledging each, unless it is told to keep them."""

    def __init__(self, context: Context, endpoint: str) -> None:
        super().__init__(context, endpoint)
        self.rollout_port = ServerPort(context, Plane.ROLLOUTS, endpoint)
        self.rollouts: dict[int, list[np.ndarray]] = {}
        self.episodes: list[list[float]] = []
        self.keeps, self._kept = False, list[Header]()
        self.publish(1, Network())

    def turn(self) -> bool:
        self.port.welcome()
        self.rollout_port.departures()
        while message := self.rollout_port.receive():
            header = message.header
            if header.kind is Kind.HELLO:
                terms = header.body[0]
                specs = EnvSpec.from_wire(terms["env"]), PolicySpec.from_wire(terms["policy"])
                self.dtype = rollout_record(*specs, terms.get("unroll_length", T)).dtype
                offer = {"window": 1, "unroll_length": T}
                self.rollout_port.send(Header(Kind.WELCOME, header.sender, header.slot, self.epoch, 0, (offer,)))
            elif header.kind is Kind.ROLLOUT:
                rows = np.zeros(header.body[0], self.dtype)
                assert message.into(rows)
                received = self.rollouts.setdefault(header.slot, [])
                assert header.seq == len(received) + 1, "in order, none twice"
                received.append(rows)
                self.episodes += header.body[1]
                self._kept.append(header)
        while self._kept and not self.keeps:
            header = self._kept.pop(0)
            self.rollout_port.send(
                Header(Kind.ACK, header.sender, header.slot, self.epoch, header.seq, (header.seq, 1))
            )
        return len(self.rollouts) == 2 and all(len(rows) >= ROLLOUTS for rows in self.rollouts.values())

    @property
    def each(self) -> list[np.ndarray]:
        """Every rollout of every group."""
        return [rows for received in self.rollouts.values() for rows in received]

    def close(self) -> None:
        self.rollout_port.close()
        super().close()


def play(folder: Path, env: dict[str, object], algorithm: type) -> StubLearner:
    """Run env-server, broker and actor until both groups have sent ROLLOUTS rollouts."""
    config = RunConfig.model_validate(
        {
            "env": env,
            "learner": {"unroll_length": T, "endpoint": f"ipc://{folder}/l"},
            "actor": {"envs_per_group": N, "env_groups": 2},
            "broker": {"endpoint": f"ipc://{folder}/b", "device": "cpu", "precision": "float32"},
            "envserver": {"endpoint": f"ipc://{folder}/e"},
        }
    )
    context = Context()
    stub = StubLearner(context, config.learner.endpoint)
    with ExitStack() as stack:
        stack.callback(context.term)
        stack.callback(stub.close)
        stack.enter_context(pytest.MonkeyPatch.context()).setattr(sessions, "make_algorithm", algorithm)
        for service in (EnvServer, Broker, Actor):
            stack.enter_context(in_thread(service(config, Instance(index=0))))
        wait_until(stub.turn, 200)
    return stub


class StackAlgorithm(CountingAlgorithm):
    """Logits are the sums of three frames that the policy was shown: the oldest, the one after it, the newest."""

    def act(self, net: Network, inputs: StepInput, core: Tensor, sampling: Sampling) -> tuple[Act, Tensor]:
        sums = inputs.obs[0].flatten(2).sum(-1).float()
        action = torch.randint(self.env.action.choices[0], (len(core),), generator=sampling.generator)
        return Act(action, {"logits": sums[:, [0, 1, -1]], "value": sums[:, 0]}), core
