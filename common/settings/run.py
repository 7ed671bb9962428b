"""The run settings that no algorithm owns, each once: name, type, default, bounds, meaning, source of the default."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, get_args

from pydantic import Field, SerializeAsAny, field_validator

from zerobeast.common.files import run_files
from zerobeast.common.settings.env import EnvConfig
from zerobeast.common.settings.evaluate import EvaluateConfig
from zerobeast.common.settings.facts import About, Idle
from zerobeast.common.settings.guards import CODE, NO_GUARD, PEERS, PLACE, REACH
from zerobeast.common.settings.kinds import Address, Addresses, Device, Meeting
from zerobeast.common.settings.net import MemoryConfig, NetConfig
from zerobeast.common.settings.section import LIMIT, Section, setting
from zerobeast.common.settings.sync_rule import SyncConfig
from zerobeast.common.wire.messages import MAX_WINDOW
from zerobeast.common.wire.seeds import MAX_ENV_SEED, hash_seed

MAX_ENV_GROUPS = 64  #: of an actor
BY_CORES = "0: chosen by `beast train` from the number of cores, otherwise 1"
Precision = Literal["auto", "float32", "bfloat16"]
Placement = Literal["auto", "apart", "fused", "serial", "serve"]
IDLE_IF_CONNECTED = Idle(("apart", "fused", "serial"), "`beast train` connects its services itself")
IDLE_IF_ENDED = Idle(get_args(Placement), "`beast train` ends when training is done")


class EnvServerConfig(Section):
    """The service that steps environments."""

    about = About.CAPACITY

    endpoint: Address = setting(
        "tcp://127.0.0.1:5550",
        "endpoint that the env-server binds and actors connect to",
        decides=REACH,
        about=About.PEERS,
        of_host=True,
        idle=IDLE_IF_CONNECTED,
    )
    threads: int = setting(
        0, f"C++ threads of an Atari session, at least 1 per 4 environments; {BY_CORES}", ge=0, le=1024, scales=True
    )
    workers: int = setting(
        0, f"worker processes for a session's pure-Python environments; {BY_CORES}", ge=0, le=1024, scales=True
    )
    in_process: bool = setting(
        False, "step pure-Python environments in the server's process: breakpoints work, but a crash ends the server"
    )
    max_envs: int = setting(8192, "maximum number of environments across all sessions", ge=1, le=2**20)
    max_workers: int = setting(128, "maximum number of environment processes across all sessions", ge=1, le=65_536)
    max_episodes_per_process: int = setting(
        0,
        "replace an environment process after this many episodes, for simulators that leak memory; 0: never",
        ge=0,
        le=LIMIT,
    )
    max_process_memory_mb: int = setting(
        0,
        "MB of an environment process and its children at which it is replaced at the end of an episode; 0: no limit",
        ge=0,
        le=LIMIT,
    )
    step_timeout_s: float = setting(
        60.0,
        "seconds that making, resetting or stepping an environment may take before its process is killed and replaced",
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
        2,
        "env groups per actor, alternating: one steps while another waits for inference (rlpyt, SEED)",
        ge=1,
        le=MAX_ENV_GROUPS,
        scales=True,
    )
    envs_per_group: int = setting(
        16,
        "rows per env group, stepped and inferred together: environments, or agents if multi-agent",
        ge=1,
        le=4096,
        scales=True,
    )
    collect_ahead: bool = setting(True, "collect one more rollout during an update; false: wait for the new policy")
    connect_timeout_s: float = setting(
        60.0,
        "exit with code 75 after this many seconds without an answer from a service",
        gt=0,
        le=LIMIT,
        about=About.CAPACITY,
    )


class BrokerConfig(Section):
    """The service that infers actions in batches."""

    endpoint: Address = setting(
        "tcp://127.0.0.1:5555",
        "endpoint that the broker binds and actors connect to",
        decides=REACH,
        about=About.PEERS,
        of_host=True,
        idle=IDLE_IF_CONNECTED,
    )
    max_batch_rows: int = setting(256, "maximum rows per forward pass, one per environment or agent", ge=1, le=65_536)
    max_batch_delay_s: float = setting(
        0.005, "seconds that a request may wait for others to join its batch", ge=0, le=10
    )
    device: Device = setting(
        "auto", "cpu, cuda, cuda:N, or auto: cuda if available", decides=NO_GUARD, about=About.MACHINE
    )
    precision: Precision = setting(
        "auto", "precision of the forward pass; auto: bfloat16 if the device is faster with it", about=About.MACHINE
    )
    threads: int = setting(0, f"torch threads on the CPU; {BY_CORES}", ge=0, le=1024, about=About.CAPACITY)


class LearnerConfig(Section):
    """The service that optimises the policy."""

    endpoint: Address = setting(
        "tcp://127.0.0.1:5560",
        "endpoint that the learner binds and actors and brokers connect to",
        decides=REACH,
        about=About.PEERS,
        of_host=True,
        idle=IDLE_IF_CONNECTED,
    )
    # both defaults are those of IMPALA: Espeholt et al. 2018, table G.1; presets have those of other algorithms
    unroll_length: int = setting(20, "T: agent steps in a rollout", ge=1, le=10_000)
    batch_size: int = setting(32, "B: rollouts in a batch", ge=1, le=65_536, scales=True)
    ranks: int = setting(
        1,
        "data-parallel learner processes, each with an equal part of every batch",
        ge=1,
        le=1024,
        about=About.MACHINE,
        scales=True,
    )
    rank_endpoints: Addresses = setting(
        "",
        "with ranks: comma-separated endpoints of all ranks after the first, to which actors connect",
        decides=REACH,
        about=About.PEERS,
    )
    meeting: Meeting = setting(
        "",
        "with ranks: rendezvous, tcp://host:port of the first rank or file:///path; empty: as set by torchrun",
        decides=PEERS,
        about=About.PEERS,
    )
    rank_timeout_s: float = setting(
        60.0, "with ranks: seconds for which a rank may be unreachable", gt=0, le=LIMIT, about=About.CAPACITY
    )
    window: int = setting(
        1, "rollouts in flight per env group besides collect_ahead's; more if a batch needs it", ge=1, le=MAX_WINDOW
    )
    max_policy_lag: int = setting(
        20,
        "age limit of a rollout's oldest step, in published versions: env groups wait rather than exceed it, and older "
        "rollouts are dropped; only with sync.rule always, and not for algorithms that learn from a replay on disk",
        ge=0,
        le=LIMIT,
        scales=True,
    )
    device: Device = setting(
        "auto", "cpu, cuda, cuda:N, or auto: cuda if available", decides=NO_GUARD, about=About.MACHINE
    )
    precision: Precision = setting("auto", "precision of the forward and backward passes; auto: as for the broker")
    threads: int = setting(0, f"torch threads on the CPU; {BY_CORES}", ge=0, le=1024, about=About.CAPACITY)
    on_nonfinite: Literal["skip", "stop"] = setting(
        "skip",
        "non-finite loss or gradient: skip the step (ten updates in a row without one end the run), or stop at once",
    )
    max_lost_episodes: float = setting(
        0.1,
        "end the run if environment failures cost more than this share of the newest 1,000 episodes; 1: never",
        ge=0,
        le=1,
        about=About.FILES,
        shapes=True,
    )
    when_done: Literal["exit", "evaluated", "stay"] = setting(
        "exit",
        "after the last step; exit: exit at once; evaluated: exit after the last evaluation, as do all services that "
        "can read the run's folder; stay: remain idle, for supervisors that always restart a process",
        about=About.FILES,
        idle=IDLE_IF_ENDED,
    )
    publish_every: int = setting(1, "publish every Nth version of the weights", ge=1, le=LIMIT)
    store: str = setting(
        "",
        "folder for the replay, on a local disk of the learner's machine; empty: in the run's folder",
        decides=PLACE,
        about=About.FILES,
        of_host=True,
    )
    checkpoint_every_s: float = setting(60.0, "seconds between checkpoints", gt=0, le=LIMIT, about=About.FILES)
    checkpoint_every_steps: int = setting(
        0,
        "agent steps between numbered checkpoints, checkpoints/<agent_steps>.pt; 0: none",
        ge=0,
        le=LIMIT,
        about=About.VERSIONS,
    )
    keep_checkpoints: int = setting(
        10, "how many of the newest numbered checkpoints to keep", ge=1, le=1_000_000, about=About.VERSIONS
    )
    log_every_s: float = setting(
        5.0,
        "seconds between rows of metrics.csv; a tenth of that in the first 30 s, but at least 0.5",
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


class LocalConfig(Section):
    """The processes that `beast train` starts on this machine."""

    about = About.MACHINE

    placement: Placement = setting(
        "auto",
        "apart: one process per service; fused: workers, each an env-server, an actor and a broker in one process; "
        "serial: everything in one process; serve: only a learner and a broker, for programs that step their own "
        "environments; auto: apart with a GPU, serial for a short run of a cheap environment, otherwise fused",
        scales=True,
    )
    env_servers: int = setting(
        1, "apart: number of env-server processes", ge=1, le=256, idle=Idle(("fused", "serial", "serve")), scales=True
    )
    actors: int = setting(
        1,
        "number of actors; fused: their env groups are spread over the workers, unless local.workers is set",
        ge=1,
        le=256,
        idle=Idle(("serve",)),
        scales=True,
    )
    workers: int = setting(
        0,
        "fused: number of worker processes, with an equal number of env groups each; 0: at most one per core",
        ge=0,
        le=256,
        idle=Idle(("apart", "serial", "serve")),
        scales=True,
    )
    restarts: int | None = setting(
        None,
        "maximum number of restarts of processes that died, including the learner; empty: 3 (0 with `deterministic`), "
        "only of processes killed by a signal, never of the learner",
        ge=0,
    )
    check: bool = setting(
        default=True,
        meaning="test an environment for half a second before this user's first run in it",
        shapes=True,
    )
    log_mb: int = setting(20, "size in MB at which a log is rotated to <log>.1; 0: no limit", ge=0, le=LIMIT)

    @property
    def log_bytes(self) -> int:
        """As `log_mb`."""
        return self.log_mb << 20


class HealthConfig(Section):
    """The HTTP health page of each service."""

    about = About.PEERS

    host: str = setting("127.0.0.1", "address to bind", decides=REACH)
    port: int = setting(
        0,
        "port; in `beast train`, that of the learner, followed by those of the other services; 0: any free port",
        ge=0,
        le=65_535,
    )
    stall_after_s: float = setting(
        60.0,
        "seconds with work but without progress after which a service counts as `stalled`",
        gt=0,
        le=LIMIT,
    )


class SecurityConfig(Section):
    """Encryption of tcp connections and admission of peers."""

    about = About.PEERS

    keys: str = setting("", "folder of keys made by `beast keygen`; empty: no encryption", decides=PEERS, of_host=True)
    secret: str = setting(
        "",
        "secret key file of this process; empty: secret/<role>.key_secret in security.keys",
        decides=PEERS,
        of_host=True,
    )
    insecure: bool = setting(
        False,
        "allow binding to non-loopback addresses without keys: anyone who can connect can join the run",
        decides=PEERS,
        short="insecure",
    )


class ParentConfig(Section):
    """The run that this one started from, as written by `beast train --from`."""

    about, is_bound = About.IDENTITY, True

    run: str = setting("", "name, folder or checkpoint of the parent run", decides=NO_GUARD, of_host=True)
    agent_steps: int = setting(0, "agent steps of the parent's checkpoint, not counted in this run", ge=0)


class Run(Section):
    """The settings of a run, except those of its algorithm."""

    name: str = setting(
        "", "name of the run and its folder; empty: <env>-<algorithm>-<date>", decides=NO_GUARD, about=About.IDENTITY
    )
    root: str = setting(
        run_files.ROOT, "folder that contains the run folders", decides=PLACE, about=About.IDENTITY, of_host=True
    )
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
        meaning="bit-identical weights when the run is repeated on this machine; slower",
    )
    total_steps: int = setting(10_000_000, "exact number of agent steps to train for", ge=1, le=LIMIT)
    stop_at_return: float | None = setting(
        None,
        "end the run at this mean return, of an evaluation or, if none are due, of the last 100 episodes; empty: never",
    )
    algo: str = setting(
        "impala", "algorithm: its name, module:NAME or file.py:NAME", decides=CODE, bound=True, names=True
    )
    preset: str = setting(
        "",
        "named settings that override the defaults but not the YAML file; empty: chosen by environment and algorithm",
        decides=NO_GUARD,
        names=True,
        scales=True,
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
            raise ValueError("expected at most 100 letters, digits, '.', '_' and '-'")
        if value == run_files.LATEST_FILE:
            raise ValueError("expected another name: this one is reserved for the newest run")
        return value

    @property
    def folder(self) -> Path:
        """Where the run keeps its files."""
        return Path(self.root).expanduser() / self.name

    @property
    def evaluates(self) -> bool:
        """Whether its policies are evaluated while it trains."""
        return self.evaluate.next_step(0, self.total_steps) is not None

    @property
    def evaluation_seed(self) -> int:
        """The seed of each of its evaluations, which so have the same first episodes. No environment trains with it."""
        return hash_seed(self.seed) % (MAX_ENV_SEED + 1) if self.evaluate.seed is None else self.evaluate.seed

    @property
    def store(self) -> Path:
        """Where its algorithm may keep rows that outlive the learner's process; only the learner uses it."""
        return self.folder / run_files.STORE
