"""Settings, for every package: how a section is declared, and the sections that no algorithm owns."""

from zerobeast.common.settings.algorithm import AlgorithmSettings as AlgorithmSettings
from zerobeast.common.settings.algorithm import AlgorithmSpec as AlgorithmSpec
from zerobeast.common.settings.algorithm import Relation as Relation
from zerobeast.common.settings.algorithm import spec_of as spec_of
from zerobeast.common.settings.algorithm import usable as usable
from zerobeast.common.settings.env import FRAMES as FRAMES
from zerobeast.common.settings.env import NO_RUN as NO_RUN
from zerobeast.common.settings.env import PADDING as PADDING
from zerobeast.common.settings.env import PAST as PAST
from zerobeast.common.settings.env import EnvConfig as EnvConfig
from zerobeast.common.settings.guards import CODE as CODE
from zerobeast.common.settings.guards import PEERS as PEERS
from zerobeast.common.settings.guards import PLACE as PLACE
from zerobeast.common.settings.guards import PLAIN as PLAIN
from zerobeast.common.settings.guards import REACH as REACH
from zerobeast.common.settings.net import MIN_SHALLOW_SIDE as MIN_SHALLOW_SIDE
from zerobeast.common.settings.net import NetConfig as NetConfig
from zerobeast.common.settings.net import Reading as Reading
from zerobeast.common.settings.net import torso_of as torso_of
from zerobeast.common.settings.run import EnvServerConfig as EnvServerConfig
from zerobeast.common.settings.run import ParentConfig as ParentConfig
from zerobeast.common.settings.run import Run as Run
from zerobeast.common.settings.run import SecurityConfig as SecurityConfig
from zerobeast.common.settings.section import Section as Section
from zerobeast.common.settings.section import setting as setting
from zerobeast.common.settings.tree import RunConfig as RunConfig
