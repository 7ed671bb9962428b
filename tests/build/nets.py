"""Environments for networks of each kind."""

from tests.build.batches import MINATAR
from tests.helpers import ROOT
from zerobeast.common.wire import ArraySpace, EnvSpec

GRU = f"{ROOT}/docs/examples/gru.py:GRU"  #: a core of somebody else's
CARTPOLE = EnvSpec("CartPole-v1", ArraySpace.box((4,)), ArraySpace.discrete(2))
SMALL = EnvSpec("Small-v0", ArraySpace.box((36, 36), "|u1"), ArraySpace.discrete(3), frame_stack=2)
FOOTBALL = EnvSpec("football/5_vs_5", ArraySpace.box((72, 96, 4), "|b1"), ArraySpace.discrete(19), frame_stack=4)
#: torsos, each with one that it is for
TORSOS = [("shallow", SMALL), ("deep", SMALL), ("minatar", MINATAR), ("mlp", CARTPOLE)]
