"""The run settings that no algorithm owns, each once: name, type, default, bounds, meaning, source of the default."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, get_args

from pydantic import Field, SerializeAsAny, field_validator

from zerobeast.common.files import run_files
from zerobeast.common.settings.env import EnvConfig
from zerobeast.common.settings.facts import About, Idle
from zerobeast.common.settings.guards import CODE, ENVIRONMENT, PEERS, PLACE, PLAIN, REACH
from zerobeast.common.settings.kinds import Address, Addresses, Device, Meeting
from zerobeast.common.settings.net import MemoryConfig, NetConfig
from zerobeast.common.settings.section import LIMIT, Section, setting
from zerobeast.common.settings.sync_rule import SyncConfig
from zerobeast.common.wire.messages import MAX_WINDOW
from zerobeast.common.wire.seeds import MAX_ENV_SEED, counted

BY_CORES = "0: by the number of cores in `beast train`, 1 elsewhere"
Precision = Literal["auto", "float32", "bfloat16"]
Placement = Literal["auto", "apart", "fused", "serial", "serve"]
CONNECTED = Idle(("apart", "fused", "serial"), "`beast train` connects its services itself")
ENDED = Idle(get_args(Placement), "`beast train` ends when training is done")


class EnvServerConfig(Section):
    """The service that steps environments."""

    about = About.CAPACITY

    endpoint: Address = setting(
        "tcp://127.0.0.1:5550", "where actors connect", decides=REACH, about=About.PEERS, of_host=True, idle=CONNECTED
    )
    threads: int = setting(0, f"C++ threads of an Atari session, at least 1 per 4 games; {BY_CORES}", ge=0, le=1024)
    workers: int = setting(0, f"processes for a session's pure-Python environments; {BY_CORES}", ge=0, le=1024)
    in_process: bool = setting(
        False, "step pure-Python environments in the env-server's process: breakpoints work, a crash ends the server"
    )
    max_envs: int = setting(8192, "maximum number of environments, over all sessions", ge=1, le=2**20)
    max_workers: int = setting(128, "maximum number of environment processes, over all sessions", ge=1, le=65_536)
    max_episodes_per_process: int = setting(
        0, "replace an environment process after so many episodes, for simulators that leak; 0: never", ge=0, le=LIMIT
    )
    max_process_memory_mb: int = setting(
        0,
        "replace an environment process at an episode's end once it takes this, with what it has started; 0: never",
        ge=0,
        le=LIMIT,
    )
    step_timeout_s: float = setting(
        60.0,
        "kill and replace a process in which an environment takes longer to be made, reset or stepped",
        gt=0,
        le=LIMIT,
        shapes=True,
    )

    def for_one(self) -> EnvServerConfig:
        """Without limits of a server of many, in which a replaced process cuts off episodes of the others."""
        limits = {"max_envs", "max_workers", "max_episodes_per_process", "max_process_memory_mb"}
        return EnvServerConfig(**self.model_dump(exclude=limits))


class ActorConfig(Section):
    """The service that drives environments and assembles rollouts."""

    env_groups: int = setting(
        2, "groups that alternate: one steps while another is inferred (rlpyt, SEED)", ge=1, le=64
    )
    envs_per_group: int = setting(
        16, "environments of a group, or their agents, which are stepped and inferred together", ge=1, le=4096
    )
    collect_ahead: bool = setting(True, "keep acting while a rollout is learned from; false: wait for the new policy")
    connect_timeout_s: float = setting(
        60.0, "exit with 75 if a service is unreachable for this long", gt=0, le=LIMIT, about=About.CAPACITY
    )


class BrokerConfig(Section):
    """The service that infers actions in batches."""

    endpoint: Address = setting(
        "tcp://127.0.0.1:5555", "where actors connect", decides=REACH, about=About.PEERS, of_host=True, idle=CONNECTED
    )
    max_batch_rows: int = setting(256, "maximum number of environments in a forward pass", ge=1, le=65_536)
    max_batch_delay_s: float = setting(0.005, "longest that a request waits for others to join its batch", ge=0, le=10)
    device: Device = setting(
        "auto", "cpu, cuda, cuda:N, or auto: cuda if there is one", decides=PLAIN, about=About.MACHINE
    )
    precision: Precision = setting(
        "auto", "of the forward pass; auto: bfloat16 if the device is faster with it", about=About.MACHINE
    )
    threads: int = setting(0, f"torch threads on the CPU; {BY_CORES}", ge=0, le=1024, about=About.CAPACITY)


class LearnerConfig(Section):
    """The service that optimises the policy."""

    endpoint: Address = setting(
        "tcp://127.0.0.1:5560",
        "where actors and brokers connect",
        decides=REACH,
        about=About.PEERS,
        of_host=True,
        idle=CONNECTED,
    )
    # both defaults are those of IMPALA: Espeholt et al. 2018, table G.1; presets have those of other algorithms
    unroll_length: int = setting(20, "T: steps of a rollout", ge=1, le=10_000)
    batch_size: int = setting(32, "B: rollouts of an update", ge=1, le=65_536)
    ranks: int = setting(
        1, "processes that learn as one, each from its part of every batch", ge=1, le=1024, about=About.MACHINE
    )
    rank_endpoints: Addresses = setting(
        "", "with ranks: where actors connect to those after the first, with commas", decides=REACH, about=About.PEERS
    )
    meeting: Meeting = setting(
        "",
        "with ranks: where they meet, tcp://host:port of the first or file:///path; empty: as set by torchrun",
        decides=PEERS,
        about=About.PEERS,
    )
    rank_timeout_s: float = setting(
        60.0, "with ranks: how long one of them may stay away", gt=0, le=LIMIT, about=About.CAPACITY
    )
    window: int = setting(
        1, "messages that an env group may have in flight: bounds memory and lag", ge=1, le=MAX_WINDOW
    )
    max_policy_lag: int = setting(
        20,
        "drop rollouts whose oldest step is more published versions behind than this (with sync.rule always)",
        ge=0,
        le=LIMIT,
    )
    device: Device = setting(
        "auto", "cpu, cuda, cuda:N, or auto: cuda if there is one", decides=PLAIN, about=About.MACHINE
    )
    precision: Precision = setting("auto", "of the forward and backward passes; auto as for the broker")
    threads: int = setting(0, f"torch threads on the CPU; {BY_CORES}", ge=0, le=1024, about=About.CAPACITY)
    on_nonfinite: Literal["skip", "stop"] = setting(
        "skip",
        "if a loss or gradient is not finite: skip that step (ten such updates in a row end the run), or stop at once",
    )
    max_lost_episodes: float = setting(
        0.1,
        "end the run when environment failures cost more than this share of 1,000 episodes, counted over the most "
        "recent ones; 1: never",
        ge=0,
        le=1,
        about=About.FILES,
        shapes=True,
    )
    when_done: Literal["exit", "evaluated", "stay"] = setting(
        "exit",
        "after the last step: exit, exit once all is evaluated, as do services that see the run's folder, or stay "
        "idle for a supervisor that always restarts it",
        about=About.FILES,
        idle=ENDED,
    )
    publish_every: int = setting(1, "publish every Nth version of the policy", ge=1, le=LIMIT)
    store: str = setting(
        "",
        "folder on a disk of the learner's machine for its replay; empty: in the run's folder",
        decides=PLACE,
        about=About.FILES,
        of_host=True,
    )
    checkpoint_every_s: float = setting(60.0, "seconds between checkpoints", gt=0, le=LIMIT, about=About.FILES)
    checkpoint_every_steps: int = setting(
        0,
        "agent steps between checkpoints that are kept by their number, checkpoints/<agent_steps>.pt; 0: none",
        ge=0,
        le=LIMIT,
        about=About.VERSIONS,
    )
    keep_checkpoints: int = setting(10, "the newest of these that stay", ge=1, le=1_000_000, about=About.VERSIONS)
    log_every_s: float = setting(
        5.0,
        "seconds between rows of metrics.csv; in the first 30 s a tenth, at least 0.5",
        gt=0,
        le=LIMIT,
        about=About.FILES,
    )

    @property
    def endpoints(self) -> list[str]:
        """Where actors connect to each rank."""
        return [self.endpoint, *filter(None, self.rank_endpoints.split(","))]

    @property
    def rows(self) -> int:
        """Rollouts of a batch that one rank learns from."""
        return self.batch_size // self.ranks


class EvaluateConfig(Section):
    """Whole episodes of the policy: while it is trained, if asked for, and afterwards."""

    about = About.FILES

    times: int = setting(0, "evaluations while training, evenly over the run; 0: none", ge=0, le=10_000)
    every_steps: int = setting(0, "agent steps between evaluations, instead of evaluate.times", ge=0, le=LIMIT)
    episodes: int = setting(10, "whole episodes of an evaluation", ge=1, le=1_000_000)
    levels: str = setting(
        "",
        "environments to evaluate in, with commas: levels by name, ends of the run's ids, other ids; empty: the run's",
        decides=ENVIRONMENT,
        shapes=True,
    )
    seed: int | None = setting(None, "of environments and actions; by default from the run's", ge=0, le=MAX_ENV_SEED)
    actions: Literal["greedy", "sampled"] = setting(
        "greedy",
        "how the policy acts outside of training: greedy takes the most likely or best action, sampled draws one",
    )
    max_steps: int = setting(
        30_000, "agent steps after which an episode is cut off and counted", ge=1, le=LIMIT, about=About.LEARNING
    )
    video_every: int = setting(0, "record a video with every Nth evaluation; 0: none", ge=0, le=10_000)

    @property
    def greedy(self) -> bool:
        """Whether policies take the likeliest or best actions."""
        return self.actions == "greedy"

    def following(self, steps: int, total_steps: int) -> int | None:
        """The agent step of the first evaluation after `steps`; None: there is none."""
        if self.every_steps:
            return min((steps // self.every_steps + 1) * self.every_steps, total_steps) if steps < total_steps else None
        number = steps * self.times // total_steps + 1
        return -(-total_steps * number // self.times) if number <= self.times else None

    def due(self, steps: int, total_steps: int) -> int:
        """The agent step at which an evaluation that was made after `steps`, at the end of a batch, was due; or 0."""
        if steps >= total_steps or self.every_steps:
            return min(steps // self.every_steps * self.every_steps if self.every_steps else steps, total_steps)
        return -(-total_steps * (steps * self.times // total_steps) // self.times) if self.times else 0


class LocalConfig(Section):
    """Which processes `beast train` starts on this machine."""

    about = About.MACHINE

    placement: Placement = setting(
        "auto",
        "apart: a process for each service; fused: workers, each an env-server, an actor and a broker in one process; "
        "serial: everything in one process; serve: a learner and a broker alone, for programs that step environments "
        "themselves; auto: apart with a GPU, serial for a short run of a cheap environment, else fused",
    )
    env_servers: int = setting(1, "apart: env-server processes", ge=1, le=256, idle=Idle(("fused", "serial", "serve")))
    actors: int = setting(
        1,
        "actors; fused: their env groups are spread over the workers, unless local.workers is given",
        ge=1,
        le=256,
        idle=Idle(("serve",)),
    )
    workers: int = setting(
        0,
        "fused: worker processes, each with the env groups of an actor; 0: one for each core, or for each group",
        ge=0,
        le=256,
        idle=Idle(("apart", "serial", "serve")),
    )
    restarts: int | None = setting(
        None,
        "how often processes that have died are started again, before the run ends: all learners, or one other; by "
        "default 3 times, but no learner, only what a signal has ended, and nothing with `deterministic`",
        ge=0,
    )
    check: bool = setting(
        default=True,
        meaning="let an environment play for half a second before this user's first run in it",
        shapes=True,
    )
    log_mb: int = setting(
        20, "size of a log at which it begins anew; the end of what was in it stays in <log>.1; 0: any", ge=0, le=LIMIT
    )

    @property
    def log_bytes(self) -> int:
        """As `log_mb`."""
        return self.log_mb << 20


class HealthConfig(Section):
    """The HTTP page on which each service reports its state."""

    about = About.PEERS

    host: str = setting("127.0.0.1", "address to serve it on", decides=REACH)
    port: int = setting(0, "port; 0: a free one; `beast train`: the learner's, the others' follow", ge=0, le=65_535)
    stall_after_s: float = setting(
        60.0,
        "a service is `stalled` if it has had work for this long and got none of it done",
        gt=0,
        le=LIMIT,
    )


class SecurityConfig(Section):
    """Encryption of tcp connections, and which peers are admitted."""

    about = About.PEERS

    keys: str = setting("", "folder of keys made by `beast keygen`; empty: no encryption", decides=PEERS, of_host=True)
    secret: str = setting(
        "",
        "secret key file of this process; empty: secret/<role>.key_secret in that folder",
        decides=PEERS,
        of_host=True,
    )
    insecure: bool = setting(
        False,
        "allow binding beyond loopback without keys: anyone who can connect can take part",
        decides=PEERS,
        short="insecure",
    )


class ParentConfig(Section):
    """The run that this one began from, if there is one: what `beast train --from` writes."""

    about, is_bound = About.IDENTITY, True

    run: str = setting("", "its name or folder, and which of its checkpoints", decides=PLAIN, of_host=True)
    agent_steps: int = setting(0, "its agent steps by then, which do not count in this run", ge=0)


class Run(Section):
    """The settings of a run, except those of its algorithm."""

    name: str = setting(
        "", "name of the run and its folder; empty: <env>-<algorithm>-<date>", decides=PLAIN, about=About.IDENTITY
    )
    root: str = setting(run_files.ROOT, "folder of run folders", decides=PLACE, about=About.IDENTITY, of_host=True)
    seed: int = setting(
        1,
        "random seed of environments, sampling and initial weights",
        ge=0,
        le=2**31 - 1,
        about=About.IDENTITY,
        bound=True,
    )
    deterministic: bool = setting(
        default=False,
        meaning="the same weights bit for bit whenever the run is repeated on this machine; slower",
    )
    total_steps: int = setting(10_000_000, "agent steps to train on, exactly", ge=1, le=LIMIT)
    stop_at_return: float | None = setting(
        None, "end once the mean return of an evaluation, or of the last 100 episodes if there are none, reaches this"
    )
    algo: str = setting("impala", "algorithm", decides=CODE, bound=True, names=True)
    preset: str = setting(
        "",
        "settings between the defaults and the YAML file; empty: the preset that fits environment and algorithm",
        decides=PLAIN,
        names=True,
    )
    env: SerializeAsAny[EnvConfig] = Field(default_factory=lambda: EnvConfig.model_validate({}))
    envserver: EnvServerConfig = EnvServerConfig()
    actor: ActorConfig = ActorConfig()
    broker: BrokerConfig = BrokerConfig()
    learner: LearnerConfig = LearnerConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    sync: SyncConfig = SyncConfig()
    net: SerializeAsAny[NetConfig] = Field(default_factory=lambda: NetConfig.model_validate({}))
    memory: MemoryConfig = MemoryConfig()
    local: LocalConfig = LocalConfig()
    security: SecurityConfig = SecurityConfig()
    health: HealthConfig = HealthConfig()
    parent: ParentConfig = ParentConfig()

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if value and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", value):
            raise ValueError("expected letters, digits, '.', '_' and '-', at most 100")
        if value == run_files.LATEST:
            raise ValueError("expected another name: this one leads to the newest run")
        return value

    @property
    def folder(self) -> Path:
        """Where the run keeps its files."""
        return Path(self.root).expanduser() / self.name

    @property
    def evaluates(self) -> bool:
        """Whether its policies are evaluated while it trains."""
        return self.evaluate.following(0, self.total_steps) is not None

    @property
    def evaluation_seed(self) -> int:
        """The seed of each of its evaluations, which so have the same first episodes. No environment trains with it."""
        return counted(self.seed) % (MAX_ENV_SEED + 1) if self.evaluate.seed is None else self.evaluate.seed

    @property
    def store(self) -> Path:
        """Where its algorithm may keep rows that outlive the learner's process; only the learner uses it."""
        return self.folder / run_files.STORE
