"""The witness as an algorithm that a run can name: `--algo zerobeast_tools.chaos.witness.spec:WITNESS`."""

from zerobeast.common.settings import AlgorithmSpec
from zerobeast.rl.algos.impala.config import SPEC, ImpalaConfig

HOME = "zerobeast_tools.chaos.witness"
WITNESS = AlgorithmSpec("witness", ImpalaConfig, f"{HOME}.algorithm:Witness", SPEC)
STORING = AlgorithmSpec("storing_witness", ImpalaConfig, f"{HOME}.store:StoringWitness", SPEC)
