"""The list of algorithms: the only place that knows them all. Torch-free, as every service reads all settings.

An algorithm `name: ClassConfig` is `Class` in `common/algos/<name>/algorithm.py`; its settings are `ClassConfig` in
`config.py` beside it, and its own presets are in `presets/` beside them.
"""

from __future__ import annotations

from collections.abc import Mapping

from zerobeast.common.algos.a2c.config import A2CConfig
from zerobeast.common.algos.c51.config import C51Config
from zerobeast.common.algos.ddpg.config import DDPGConfig
from zerobeast.common.algos.dqn.config import DQNConfig
from zerobeast.common.algos.impact.config import ImpactConfig
from zerobeast.common.algos.impala.config import ImpalaConfig
from zerobeast.common.algos.ppo.config import PPOConfig
from zerobeast.common.algos.r2d2.config import R2D2Config
from zerobeast.common.algos.rainbow.config import RainbowConfig
from zerobeast.common.algos.sac.config import SACConfig
from zerobeast.common.algos.settings import LearnerSettings
from zerobeast.common.algos.td3.config import TD3Config
from zerobeast.common.algos.vmpo.config import VMPOConfig
from zerobeast.common.settings.section import Section


class Algorithms(Section):
    """The algorithms' sections of the settings tree, each under the name that `algo` takes."""

    impala: ImpalaConfig = ImpalaConfig()
    a2c: A2CConfig = A2CConfig()
    ppo: PPOConfig = PPOConfig()
    vmpo: VMPOConfig = VMPOConfig()
    impact: ImpactConfig = ImpactConfig()
    dqn: DQNConfig = DQNConfig()
    c51: C51Config = C51Config()
    rainbow: RainbowConfig = RainbowConfig()
    r2d2: R2D2Config = R2D2Config()
    ddpg: DDPGConfig = DDPGConfig()
    td3: TD3Config = TD3Config()
    sac: SACConfig = SACConfig()


ALGORITHMS: Mapping[str, type[LearnerSettings]] = {name: type(section) for name, section in Algorithms()}
