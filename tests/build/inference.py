"""The broker's inference with an algorithm that echoes, without sockets."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tests.build.brokers import ECHO_ENV, ECHO_POLICY, EchoAlgorithm
from zerobeast.common.wire.records import act_record, step_record
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.rl.acting.inference import Inference

STACKED = EnvSpec("Frames-v0", ArraySpace.box((2, 2), "|u1"), ArraySpace.discrete(6), frame_stack=3)


def make(env: EnvSpec = ECHO_ENV, max_rows: int = 8) -> Inference:
    algorithm: Any = EchoAlgorithm(env)
    found = Inference(algorithm, max_rows=max_rows, device=torch.device("cpu"), dtype=torch.float32, seed=1)
    found.reserve(max_rows)
    return found


def infer(inference: Inference, slots: list[int], **fields: object) -> NDArray[Any]:
    """Fill the batch with rows, compute them, and return the act records."""
    env = inference.algorithm.env
    rows = inference.batch.rows.view(step_record(env).dtype)[: len(slots), 0]
    rows[:] = np.zeros((), rows.dtype)
    for name, values in fields.items():
        rows[name] = values
    inference.batch.slots[: len(slots)] = slots
    inference.submit(len(slots), with_cores=True)
    assert inference.done()
    return inference.acts[: len(slots)].view(act_record(env, ECHO_POLICY).dtype)[:, 0].copy()
