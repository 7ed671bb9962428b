"""An env group and its three servers, without sockets or clock: servers die or are at fault, and messages get lost."""

import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.health.hops import Hops
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.wire import ArraySpace, EnvSpec, PolicySpec, act_record, rollout_record, step_record
from zerobeast.common.wire.messages import Header, Kind, Plane, Reason
from zerobeast.common.wire.session import Arrival
from zerobeast.common.wire.stream import RESEND_AFTER_S
from zerobeast.rl.algos.policy_gradient.actor_critic import logits_and_value
from zerobeast.services.actor.group import EnvGroup
from zerobeast.services.actor.waits import TIMEOUTS, Wait, Waits
from zerobeast.services.learner.ledger import StreamLedger

ENV = EnvSpec("Counter", ArraySpace.box((1,), "<i8"), ArraySpace.discrete(7))
POLICY = PolicySpec(logits_and_value(1), 1)
T, N, WINDOW, EPISODE = 3, 2, 2, 5
CONFIG = RunConfig.model_validate({"learner": {"unroll_length": T}, "actor": {"envs_per_group": N}})
TICK_S = 0.05


class Message:
    """Replaces `zerobeast.common.transport.Incoming` for a group."""

    def __init__(self, header: Header, *frames: np.ndarray) -> None:
        self.header = header
        self.frames = [np.array(frame) for frame in frames]

    def into(self, buffer: np.ndarray, *, last: bool = True) -> bool:
        frame = self.frames.pop(0).tobytes() if self.frames else b""
        if good := len(frame) == buffer.nbytes and last != bool(self.frames):
            buffer.view("u1").reshape(-1)[:] = np.frombuffer(frame, "u1")
        return good


Spoil = Callable[[Message], Message]


class Server:
    """One start of a server with at most one session. Subclasses say what WELCOME offers and how to answer requests.

    Answers are spoilt while it is told to, and a spoilt one is repeated when it is asked for again.
    """

    spoil: Spoil | None = None
    spoilt: Kind | None = None  #: requests whose answers are spoilt; None: all
    hellos = asked = 0

    def __init__(self, epoch: int, play: "Play") -> None:
        self.epoch, self.play = epoch, play
        self.known, self.seq = False, 0
        self.reply: Message | None = None

    def terms(self) -> dict[str, Any]:
        raise NotImplementedError

    def do(self, header: Header, rows: Any) -> Message:
        raise NotImplementedError

    def answer(self, header: Header, rows: Any) -> Message | None:
        self.asked += 1
        if header.kind is Kind.HELLO:
            self.known, self.hellos = True, self.hellos + 1
            return self.message(Kind.WELCOME, self.seq, (self.terms(),))
        if header.kind is Kind.BYE:
            if header.epoch == self.epoch:
                self.forget()
            return None
        if not self.known or header.epoch != self.epoch:
            return self.message(Kind.ERROR, header.seq, (str(Reason.UNKNOWN_SESSION), "who?"))
        if header.seq > self.seq:
            self.seq, self.reply = header.seq, self.do(header, rows)
            if self.spoil and self.spoilt in (None, header.kind):
                self.reply = self.spoil(self.reply)
        return self.reply and Message(self.reply.header, *self.reply.frames)

    def forget(self) -> None:
        """End the session."""
        self.known, self.seq = False, 0

    def message(self, kind: Kind, seq: int, body: tuple[Any, ...], *frames: np.ndarray) -> Message:
        return Message(Header(kind, 1, 0, self.epoch, seq, body), *frames)


class EnvServer(Server):
    """Environments whose observation is a number that never repeats."""

    age = -1  #: steps since the episode's first; negative before RESET

    def terms(self) -> dict[str, Any]:
        return {"env": ENV.to_wire()}

    def do(self, header: Header, rows: Any) -> Message:
        assert self.age >= 0 or header.kind is Kind.RESET, "RESET comes before the first STEP"
        self.age = 0 if header.kind is Kind.RESET else (self.age + 1) % EPISODE
        self.play.steps += 1
        out = np.zeros(N, step_record(ENV).dtype)
        out["obs"][:, 0] = self.play.steps * 10 + np.arange(N)
        out["first"], out["terminated"] = self.age == 0, self.age == EPISODE - 1
        return self.message(Kind.OBS, header.seq, ([],), out)

    def forget(self) -> None:
        super().forget()
        self.age = -1


class Broker(Server):
    """Counts the steps since it was told to forget, in the recurrent state and in the value."""

    count = -1.0

    def terms(self) -> dict[str, Any]:
        return {"policy": POLICY.to_wire()}

    def do(self, header: Header, rows: Any) -> Message:
        first = bool(rows["first"][0])
        assert self.count >= 0 or first, "the first request of a session counts as first"
        self.count = 0.0 if first else self.count + 1
        act = np.zeros(N, act_record(ENV, POLICY).dtype)
        act["value"], act["logits"][:, 0] = self.count, rows["obs"][:, 0]
        act["action"] = rows["obs"][:, 0] % 7
        core = [np.full((N, 1), self.count, np.float32)] if header.body[0] else []
        self.play.cores += len(core)
        self.play.acts.update({int(obs): self.epoch for obs in rows["obs"][:, 0]})
        return self.message(Kind.ACT, header.seq, (0,), act, *core)


class Learner(Server):
    """Takes rollouts as the real one does, and uses one at each turn."""

    def __init__(self, epoch: int, play: "Play") -> None:
        super().__init__(epoch, play)
        self.ledger, self.queue = StreamLedger(), deque[tuple[int, np.ndarray, int]]()

    def terms(self) -> dict[str, Any]:
        self.seq = self.ledger.consumed
        return {"window": WINDOW}

    def answer(self, header: Header, rows: Any) -> Message | None:
        if header.kind is Kind.HELLO:
            self.ledger.begin(header.body[0]["first"])
        if header.kind is not Kind.ROLLOUT or not self.known or header.epoch != self.epoch:
            return super().answer(header, rows)
        arrival = self.ledger.arrival(header.seq)
        if arrival is Arrival.NEW:
            self.ledger.take(header.seq)
            self.queue.append((header.seq, np.array(rows), header.body[2]))
            assert len(self.queue) <= WINDOW
        if arrival is Arrival.AHEAD:
            return self.message(Kind.ERROR, header.seq, (str(Reason.UNKNOWN_SESSION), "one is missing"))
        return self.ack() if arrival is Arrival.REPEATED else None

    def use(self) -> Message | None:
        if not self.queue:
            return None
        seq, rows, acting = self.queue.popleft()
        self.ledger.use(seq)
        self.play.used.append((self.epoch, seq, rows))
        of_brokers = {self.play.acts[int(obs)] for obs in rows["obs"][:, :-1].flat}
        assert of_brokers == {acting}, "one broker has chosen all actions of a rollout, and the rollout says which"
        return self.ack()

    def ack(self) -> Message:
        return self.message(Kind.ACK, self.ledger.consumed, (self.ledger.consumed, WINDOW))


Kinds = Mapping[Plane, type[Server]]
SERVERS: Kinds = {Plane.STEPS: EnvServer, Plane.INFERENCE: Broker, Plane.ROLLOUTS: Learner}


class Play:
    """A group and its three servers, any of which may be down; messages may get lost."""

    def __init__(self, seed: int = 0, config: RunConfig = CONFIG, kinds: Kinds = SERVERS) -> None:
        self.random = random.Random(seed)
        self.now, self.epoch, self.steps, self.cores, self.loss = 0.0, 0, 0, 0, 0.0
        self.group = EnvGroup(config, sender=1, slot=0, seed=0, waits=Waits(0.0, Hops("actor", 0.0)))
        self.kinds = kinds
        self.servers: dict[Plane, Server | None] = {}
        self.used: list[tuple[int, int, np.ndarray]] = []
        self.acts: dict[int, int] = {}  #: epoch of the broker that answered an observation last
        self.refused: list[RemoteProtocolError] = []
        self.stuck_learner = False
        for plane in SERVERS:
            self.start(plane)

    def start(self, plane: Plane) -> None:
        self.epoch += 1
        self.servers[plane] = self.kinds[plane](self.epoch, self)

    def end(self, plane: Plane, *, politely: bool) -> None:
        server, self.servers[plane] = self.servers[plane], None
        if politely and server is not None and server.known:
            self.deliver(plane, server.message(Kind.BYE, 0, ()))

    def deliver(self, plane: Plane, message: Message | None) -> None:
        if message is not None and self.random.random() >= self.loss:
            self.group.take(plane, message, self.refused.append, self.now)  # type: ignore[arg-type]

    def server(self, plane: Plane) -> Any:
        """The server of a plane, which is up."""
        found = self.servers[plane]
        assert found is not None, "it is down"
        return found

    def turn(self, plane: Plane | None = None) -> None:
        """One exchange on each plane, or on one of them."""
        self.now += TICK_S
        for each in [plane] if plane else list(SERVERS):
            server = self.servers[each]
            for _ in range(WINDOW + 1):
                work = self.group.planes[each].due(self.now) if server else None
                if work is None or server is None:
                    break
                header, frames = work
                self.group.planes[each].mark_sent(self.now)
                if self.random.random() >= self.loss:
                    self.deliver(each, server.answer(header, frames[0] if frames else None))
            if isinstance(server, Learner) and not self.stuck_learner:
                self.deliver(each, server.use())

    def goes_on(self) -> None:
        """Remove all obstacles and check that rollouts flow."""
        self.loss, self.stuck_learner = 0.0, False
        for plane, server in self.servers.items():
            if server is None:
                self.start(plane)
        before, until = len(self.used), self.now + 2 * TIMEOUTS.no_progress + 2 * RESEND_AFTER_S
        while len(self.used) < before + 6:
            self.turn()
            assert self.now < until, f"the group waits for {self.group.waits.current} and nothing comes"
        self.check()

    def check(self) -> None:
        """Check that rollouts are in order, none is missing or used twice by one learner, and each is consistent."""
        last: dict[int, int] = {}
        for epoch, seq, rows in self.used:
            assert seq == last.get(epoch, seq - 1) + 1
            last[epoch] = seq
            obs, first, value = rows["obs"][:, :, 0], rows["first"], rows["value"]
            assert rows.dtype == rollout_record(ENV, POLICY, T).dtype
            assert (np.diff(obs, axis=1) == 10).all(), "no observation is skipped or repeated"
            assert (rows["logits"][..., 0] == obs[:, :-1]).all(), "an answer stands beside what it answers"
            assert (rows["last_action"][:, 1:] == obs[:, :-1] % 7).all()
            assert (np.where(first[:, 1:-1], 0, value[:, :-1] + 1) == value[:, 1:]).all()
            assert (rows["core_state"][:, 0] == value[:, 0]).all(), "the memory is that of the first observation"
            assert (value[:, 0][first[:, 0]] == 0).all()


def play_until_wait(wait: Wait) -> Play:
    """A play whose group has played for a while and now waits for `wait`."""
    play = Play()
    for _ in range(40):
        play.turn()
    if wait is Wait.CREDIT:
        play.stuck_learner = True
    plane = {Wait.ENV: Plane.INFERENCE, Wait.BROKER: Plane.STEPS}.get(wait)
    for _ in range(100):
        if play.group.waits.current is wait:
            return play
        play.turn(plane)
    raise AssertionError(f"never waited for {wait}")
