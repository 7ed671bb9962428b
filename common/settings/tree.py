"""The whole description of a run.

It is one YAML file (`runs/<name>/config.yaml`), one set of flags (`--learner.batch_size 32`) and one set of environment
variables (`BEAST_LEARNER__BATCH_SIZE=32`). Every service reads the same tree and uses its part.
"""

from typing import Any

from pydantic import SerializeAsAny, SerializerFunctionWrapHandler, model_serializer, model_validator

from zerobeast.common.errors import ConfigError, raise_as
from zerobeast.common.settings.algorithm import AlgorithmSettings, AlgorithmSpec, spec_of
from zerobeast.common.settings.run import Run
from zerobeast.common.settings.section import setting

ALGORITHM = "algorithm"


class RunConfig(Run):
    """The settings of a run and of its algorithm. In text, the algorithm's section has the algorithm's name.

    Examples:
      >>> import zerobeast as zb
      >>> config = zb.Run("cart").config
      >>> config.env.id, config.section, config.total_steps
      ('CartPole-v1', 'ppo', 2000)
      >>> config.algorithm.clip  # ppo.clip in text
      0.2
    """

    algorithm: SerializeAsAny[AlgorithmSettings] = setting(None, "settings of the algorithm that `algo` names")

    @property
    def spec(self) -> AlgorithmSpec:
        """The algorithm."""
        return spec_of(self.algo)

    @property
    def section(self) -> str:
        """The name of the algorithm and of its section."""
        return self.spec.name

    def __reduce__(self) -> tuple[Any, ...]:  # a process of ours imports the algorithm's file by its path, as we did
        return type(self).model_validate, (self.model_dump(),)

    @model_validator(mode="before")
    @classmethod
    def _of_its_algorithm(cls, tree: Any) -> Any:
        if not isinstance(tree, dict) or ALGORITHM in tree:
            return tree
        with raise_as(ValueError, "", ConfigError):
            spec = spec_of(str(tree.get("algo", cls.model_fields["algo"].default)))
        others = {name: value for name, value in tree.items() if name != spec.name}
        return {**others, ALGORITHM: spec.settings.model_validate(tree.get(spec.name, {}))}

    @model_serializer(mode="wrap")
    def _under_its_name(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        tree = dump(self)
        own = tree.pop(ALGORITHM)
        return {**tree, self.section: own}
