"""Whether a run fits its environment: what its description shows before any network is made."""

from collections.abc import Iterator

from zerobeast.common.errors import ConfigError
from zerobeast.common.settings import AlgorithmSettings, Reading, RunConfig, find_usable, torso_of
from zerobeast.common.wire import EnvSpec, step_record

MAX_OBS_BYTES = 16 << 20  #: of one observation, stacked; networks grow with it


def refuse_unfit(config: RunConfig, env: EnvSpec) -> None:
    """Raise ConfigError if the run's algorithm or network cannot take an environment, with all reasons and remedies."""
    settings = config.algorithm
    if found := [*_actions(config, env, settings), *_observations(config, env, settings)]:
        raise ConfigError.of(found, "; ")


def _actions(config: RunConfig, env: EnvSpec, settings: AlgorithmSettings) -> Iterator[ConfigError]:
    action = env.action
    endless = not all(array.bounded.all() for array in action.arrays if array.kind == "box")
    if not settings.takes(action):
        others = ", ".join(sorted(spec.name for spec in find_usable() if spec.settings.takes(action)))
        are = f"{action.kind}{' without bounds' if endless else ''}"
        sent = f"the actions of {env.env_id} are {are}"
        sentence = f"algo {config.section} takes {settings.actions}, but {sent}: expected algo {others}"
        yield ConfigError(sentence, path="algo", value=config.section, expected=others, beside=["env.id"])
    elif sentence := settings.flaw(action, config.section):
        yield ConfigError(sentence, path=config.section)
    if config.net.squash_actions and endless:
        why = f"the actions of {env.env_id} have no bounds"
        yield ConfigError(path="net.squash_actions", value=True, expected="false", cause=why)


def _observations(config: RunConfig, env: EnvSpec, settings: AlgorithmSettings) -> Iterator[ConfigError]:
    net, arrays = config.net, env.obs.arrays
    if net.recurrent and not settings.memory:
        why = f"{config.section} learns from single transitions"
        yield ConfigError(path="net.core", value=net.core, expected="none", cause=why)
    if (size := env.frame_stack * step_record(env, packed=False).row_bytes) > MAX_OBS_BYTES:
        sentence = f"{env.env_id}: observations of {size} bytes, expected at most {MAX_OBS_BYTES}"
        yield ConfigError(sentence, path="env.id", value=env.env_id)
    sides = [min(array.image_size or ()) for array in arrays if Reading.of(array, net).convolved]
    shapes = " and ".join("x".join(map(str, array.shape)) or "a number" for array in arrays)
    sent = f"observations of {env.env_id} are {shapes}"
    if (least := torso_of(net.torso).smallest_image) and not sides:
        why = f"{sent}, which are not images"
        yield ConfigError(path="net.torso", value=net.torso, expected="auto or mlp", cause=why)
    elif least and min(sides) < least:
        why = f"{sent}, smaller than {least} pixels a side"
        yield ConfigError(path="net.torso", value=net.torso, expected="minatar or deep", cause=why)
