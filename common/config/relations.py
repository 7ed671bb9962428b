"""What must hold between settings that are each valid on their own."""

from collections.abc import Iterator

from zerobeast.common.settings import Relation, RunConfig

#: for actions before they are squashed; `zerobeast.rl.ops.gaussian` softly bounds larger values
MAX_SQUASHED_LOG_STD = 0.0


def relations(config: RunConfig) -> Iterator[Relation]:
    """The relations that are broken wherever the services run."""
    envs, rows = config.actor.envs_per_group, config.broker.max_batch_rows
    if envs > rows:
        yield Relation(
            ("broker.max_batch_rows", "actor.envs_per_group"),
            f"broker.max_batch_rows {rows} is below actor.envs_per_group {envs}: no request would fit a batch",
        )
    servers, actors = config.local.env_servers, config.local.actors
    if servers > actors:
        yield Relation(
            ("local.env_servers", "local.actors"),
            f"local.env_servers {servers} is above local.actors {actors}: an actor here uses one, the rest would idle",
        )
    yield from config.algorithm.relations(config.section, config)
    rule = config.sync.parsed.name
    if config.deterministic and rule not in ("always", "never"):
        yield Relation(
            ("sync.rule", "deterministic"),
            f"sync.rule {config.sync.rule!r} with deterministic: expected always or never, because news of a version "
            f"come whenever they do",
        )
    if config.net.squash_actions and config.net.action_log_std > MAX_SQUASHED_LOG_STD:
        yield Relation(
            ("net.action_log_std", "net.squash_actions"),
            f"net.action_log_std {config.net.action_log_std} with net.squash_actions: expected at most "
            f"{MAX_SQUASHED_LOG_STD:g}, the widest that squashed actions begin with",
        )
    if config.security.secret and not config.security.keys:
        yield Relation(
            ("security.secret", "security.keys"),
            "security.secret is of no use without security.keys, the folder of the public ones",
        )
