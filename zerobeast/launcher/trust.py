"""Settings that a file may not decide alone, since a run folder or a config may come from a stranger."""

from __future__ import annotations

from zerobeast.common.config.load import Loaded
from zerobeast.common.errors import ConfigError


def names_code(env_id: str) -> bool:
    """Whether making this environment imports a module of the user's: `module:Id`."""
    return ":" in env_id


def refuse_code(loaded: Loaded) -> None:
    """Raise ConfigError if a file, rather than a flag or the environment, names a module to import."""
    refuse_named(loaded.config.env.id, loaded.origins.get("env.id", ""))


def refuse_named(env_id: str, where: str) -> None:
    """Raise ConfigError if a file names the module that making this environment imports."""
    if where.startswith("file ") and names_code(env_id):
        raise ConfigError(
            f"{where}: {env_id!r} imports a module, which a file may not decide alone: say --env {env_id} as well"
        )
