"""What is odd about an environment, found by a process that plays it at random for a while."""

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from zerobeast.common.errors import ConfigError
from zerobeast.common.files import state
from zerobeast.common.settings import RunConfig
from zerobeast.launcher.spaces import answer_about

BRIEF, THOROUGH = ("check", "brief"), ("check",)
CHECKED = "checked"  #: folder of what this user's runs have begun with


def findings(config: RunConfig, command: tuple[str, ...] = THOROUGH) -> list[tuple[str, str]]:
    """Levels, each "ok", "warning" or "error", and sentences.

    Raises:
      ConfigError: there is no such environment, or it hangs.
    """
    return [(level, sentence) for level, sentence in answer_about(config, command)]


def first_check(config: RunConfig) -> Iterator[str]:
    """Warnings about environments given by reference, unless a run of this user has begun with the same before.

    Raises:
      ConfigError: no run can learn from one.
    """
    for task in config.env.tasks if config.local.placement != "serve" else ():
        home, _, name = task.rpartition(":")
        alone = config.model_copy(update={"env": config.env.alone(task)})
        digest = blake2b(repr((alone.env, Path.cwd(), _contents(Path(home)))).encode(), digest_size=16).hexdigest()
        if "(" in task or not (home and name) or state.knows(CHECKED, digest):
            continue
        found = findings(alone, BRIEF)
        if errors := [sentence for level, sentence in found if level == "error"]:
            raise ConfigError("; ".join(errors))
        state.remember(CHECKED, [digest])
        yield from (f"{task}: {sentence}" for level, sentence in found if level == "warning")


def _contents(file: Path) -> bytes:
    """Those of a script, so that it is checked again once it is edited."""
    return file.read_bytes() if file.suffix == ".py" and file.is_file() else b""
