"""From received bytes to answers, without sockets."""

import numpy as np
import pytest
import torch

from tests.build.brokers import ECHO_ENV, EchoAlgorithm, EchoNet
from tests.build.inference import STACKED, infer, make
from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.wire.records import step_record
from zerobeast.rl.acting.inference import Inference
from zerobeast.rl.nets.weights import flatten


def test_answers_are_in_the_rows_of_their_requests() -> None:
    inference = make()
    acts = infer(inference, [3, 1], obs=[[1, 2, 3], [7, 8, 9]], first=True)
    assert acts["logits"].tolist() == [[2, 3, 4], [8, 9, 10]]
    assert acts["action"].tolist() == [1, 1]


def test_the_network_gets_step_inputs_of_the_agreed_shapes() -> None:
    inference = make(STACKED)
    infer(inference, [0, 1], obs=5, reward=[0.5, -3.0], first=[True, False])
    seen = inference.algorithm.seen[-1]
    assert seen.obs.shape == (1, 2, 3, 2, 2)
    assert seen.obs.dtype == torch.uint8
    assert (seen.last_action.shape, seen.last_action.dtype) == ((1, 2), torch.int64)
    assert (seen.reward.tolist(), seen.reward.dtype) == ([[0.5, -3.0]], torch.float32), "unclipped"
    assert (seen.first.tolist(), seen.first.dtype) == ([[True, False]], torch.bool)


def test_two_batches_take_turns_so_that_one_collects_while_the_other_is_computed() -> None:
    inference = make()
    first = inference.batch
    infer(inference, [0], obs=1)
    second = inference.batch
    infer(inference, [0], obs=1)
    assert first is not second
    assert inference.batch is first


def test_any_byte_counts_as_a_flag_and_no_number_harms_other_rows() -> None:
    inference = make()
    infer(inference, [0, 1], obs=0, first=True)
    inference.batch.first[:2] = [255, 0]
    inference.batch.rows.view(step_record(ECHO_ENV).dtype)["reward"][:2, 0] = np.nan
    inference.submit(2, with_cores=True)
    assert inference.algorithm.seen[-1].first.tolist() == [[True, False]]
    acts = infer(inference, [0, 1], obs=[[np.nan, np.inf, -np.inf], [1, 2, 3]])
    assert acts["logits"][1].tolist() == [2, 3, 4]


def test_weights_are_loaded_and_others_refused() -> None:
    inference = make()
    assert inference.weights_bytes == flatten(EchoNet()).nbytes
    inference.load(flatten(EchoNet(7.0)))
    assert infer(inference, [0], obs=0)["value"].tolist() == [7.0]
    with pytest.raises(RemoteProtocolError):
        inference.load(np.zeros(8, np.uint8))
    assert infer(inference, [0], obs=0)["value"].tolist() == [7.0]


def test_a_network_that_cannot_act_fails_at_once() -> None:
    class Broken(EchoAlgorithm):
        def act(self, *_args: object):
            raise RuntimeError("shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="multiplied"):
        Inference(Broken(), max_rows=4, device=torch.device("cpu"), dtype=torch.float32, seed=1)
