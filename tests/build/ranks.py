"""Runs of 1, 2 and 4 ranks that are fed the same batches, split by rows: python tests/build/ranks.py FOLDER UPDATES.

The processes are forked from one, so that torch is imported once. What came of each is in FOLDER/<ranks>-<rank>.pt.
Further pairs of them only meet: what came of that is in FOLDER/<name>-<rank>.json.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
import torch
from torch import Tensor, distributed

from tests.build.batches import REACH, VECTORS, generator, make_batch, transitions
from tests.build.nets import SMALL
from tests.helpers import free_port, wait_until
from zerobeast.common.errors import BeastError, PeerLost
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.wire import rollout_record
from zerobeast.rl.data import Batch, Rollouts
from zerobeast.rl.factory import make_algorithm
from zerobeast.rl.ops import meeting, ranks
from zerobeast.rl.ops.listeners import find_listening
from zerobeast.rl.ops.optim import Adam, AdamW, RAdam, RMSprop, RMSPropTF1
from zerobeast.rl.ops.tree import tree_map
from zerobeast.rl.protocol import OF_ITS_RUN
from zerobeast.rl.replay.items import Sequences
from zerobeast.testing.small_run import copy_numbers

ROWS, STEPS, NAN_AT = 8, 3, 5
FOUR = "impala mean turns"  #: what four ranks learn as well
SETTINGS: dict[str, dict[str, Any]] = {
    "impala sum": {},
    FOUR: {"reduction": "mean", "popart": True, "normalize_advantages": True, "entropy_target": 0.9},
    "ppo turns": {"minibatches": 1, "epochs": 3, "normalize_returns": True, "target_kl": 0.0005, "learning_rate": 0.01},
    "vmpo turns": {"popart": True, "target_period": 3},
    "impact turns": {"batches": 2, "uses": 2, "kl_cost": 0.2, "kl_target": 1e-5, "normalize_advantages": True},
    "r2d2": {"batch_size": ROWS, "n_step": 2, "burn_in": 0, "sequence_length": STEPS, "target_period": 3},
    "sac": {"batch_size": ROWS},
}


def learning_of(name: str, root: Path, *, lstm: bool = False, **settings: Any) -> tuple[Any, Any, Any]:
    """Algorithm, network, learning; the first word of `name` is the algorithm's."""
    algo = name.split()[0]
    if algo in ("r2d2", "sac"):
        settings = {"replay_min_size": 40, "replay_size": 400, "samples_per_insert": 100.0, **settings}
    run = {
        "algo": algo,
        "root": str(root),
        "name": name.replace(" ", "-"),
        "total_steps": 10**6,
        "net": {"hidden_size": 8, "core_width": 4, "core": "lstm" if lstm else "none", "normalize_obs": True},
        "learner": {"precision": "float32", "batch_size": ROWS, "unroll_length": STEPS},
        algo: settings,
    }
    env = REACH if algo == "sac" else replace(VECTORS, action_mask=name.endswith("turns"))
    algorithm = make_algorithm(RunConfig.model_validate(run), env)
    torch.manual_seed(1)
    net = algorithm.network()
    return algorithm, net, algorithm.learning(net)


def own(entry: Tensor, dim: int = 0) -> Tensor:
    """The rows of this rank."""
    return entry.chunk(ranks.size(), dim)[ranks.rank()]


def batch_of(algorithm: Any, seed: int) -> Batch:
    """This rank's rows. Valid steps are spread unevenly, and now and then half of the ranks have none."""
    batch = make_batch(algorithm, resets=0.3, seed=seed, rows=ROWS, steps=STEPS)
    batch.reward.add_(torch.arange(ROWS))
    if batch.action_mask is not None:  # the first rows have more choices than the others
        batch.action_mask[:, : seed % ROWS] = True
    if seed % 10 == 0:
        batch.mask[:, ROWS // 2 :] = False
    return batch.pick(own(torch.arange(ROWS)))


def update(name: str, algorithm: Any, learning: Any, seed: int) -> tuple[float, int]:
    """One update; returns the loss and the number of optimiser steps."""
    weights = own(torch.rand(ROWS, generator=generator(seed)))
    if name == "sac":
        noise = iter(torch.randn(2, ROWS, 2, generator=generator(seed)))
        moves = transitions(seed, REACH, n=ROWS)
        inputs, later = (tree_map(lambda entry: own(entry, 1), each) for each in (moves.inputs, moves.next_inputs))
        action, reward, discount = map(own, moves[1:4])
        moves = moves._replace(inputs=inputs, next_inputs=later, action=action, reward=reward, discount=discount)
        with mock.patch.object(torch, "randn_like", side_effect=lambda _mean: own(next(noise))):
            step = learning.update(moves, weights, seed).step
        return step.loss, int(step.applied)
    batch = batch_of(algorithm, seed)
    if name == "r2d2":
        drawn = Sequences(batch.inputs, batch.actions, batch.terminated, {}, batch.core_state, batch.mask, 0)
        step = learning.update(drawn, weights, seed).step
        return step.loss, int(step.applied)
    if seed == NAN_AT and name == "impala sum" and ranks.rank() == 0:
        batch.reward[:] = torch.nan
    learned = learning.update(batch, seed)
    return learned.loss, learned.steps


def uneven_minibatches(root: Path) -> dict[str, Any]:
    """PPO with more minibatches than some ranks have rollouts for."""
    algorithm, net, learning = learning_of("ppo parts", root, lstm=True, minibatches=2, epochs=2)
    steps = []
    for seed in range(1, 4):
        batch = batch_of(algorithm, seed)
        if ranks.rank():
            batch.mask[:, 1:] = False
        steps.append(learning.update(batch, seed).steps)
    return {"steps": steps, "net": net.state_dict()}


def replay(root: Path) -> dict[str, Any]:
    """A replay that some ranks fill in more calls than others, and of which some items have been drawn."""
    algorithm, net, learning = learning_of("sac replay", root, batch_size=ROWS, priority_exponent=0.5)
    record = rollout_record(REACH, algorithm.policy, STEPS)
    rows = np.zeros(64, record.dtype)
    rows["obs"] = 5 + np.random.default_rng(1).normal(size=rows["obs"].shape)
    for part in np.array_split(np.split(rows, ranks.size())[ranks.rank()], ranks.rank() + 1):
        learning.add(Rollouts(part, record, REACH, torch.device("cpu")), 0)
    store, priority = learning.parts["replay"], ranks.rank() + 2.0
    raised = np.unique(store.draw(4, beta=1.0).ids)
    store.update(raised, torch.full((len(raised),), priority))
    drawn = store.draw(4, beta=1.0)
    shares = np.where(np.isin(drawn.ids, raised), priority**0.5, 1.0)
    total = store.size - len(raised) + len(raised) * priority**0.5
    assert learning.due
    learning.step(0)
    return {
        "norm": dict(net.vectors.norm.of_arrays[0].named_buffers()),
        "transitions": learning.pace.sampled,
        "weights": drawn.weights,
        "chances": torch.from_numpy(shares / total),
    }


def start_eagerly() -> None:
    """Neither what has run here nor a network of images nor an optimiser loads the compiler, which takes a second."""
    make_algorithm(RunConfig(), SMALL).network()
    for kind in (Adam, AdamW, RAdam, RMSprop, RMSPropTF1):
        optimizer = kind([torch.nn.Parameter(torch.ones(3))], lr=0.1)
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
    assert {"torch._dynamo", "sympy"}.isdisjoint(sys.modules), "the compiler is loaded"


def run_rank(folder: Path, size: int, rank: int, updates: int) -> None:
    torch.set_num_threads(1)
    if size > 1:
        meeting.join(rank, size, f"file://{folder}/meeting-{size}", 100.0, {"size": str(size)})
    root, found = folder / str(size), dict[str, Any]()
    for name in SETTINGS if size < 4 else [FOUR]:
        algorithm, net, learning = learning_of(name, root, **SETTINGS[name])
        of_all = [update(name, algorithm, learning, seed) for seed in range(updates)]
        state = {key: value for key, value in learning.state().items() if key not in OF_ITS_RUN}
        found[name] = {"losses": torch.tensor(of_all), "net": net.state_dict(), "state": list(copy_numbers(state))}
    if size < 4:
        found |= {"uneven": uneven_minibatches(root), "replay": replay(root)}
        start_eagerly()
    if size > 1:
        assert ranks.Round([rank, size], "round").result(60.0) == [[each, size] for each in range(size)]
    torch.save(found, folder / f"{size}-{rank}.pt")


def doors() -> list[tuple[str, bool]]:
    """(host, whether one can connect) of each socket at which this process listens."""
    found = []
    for descriptor in find_listening():
        with socket.socket(fileno=os.dup(descriptor)) as listener, socket.socket(listener.family) as stranger:
            stranger.settimeout(0.2)
            place = listener.getsockname()
            found.append((place[0], stranger.connect_ex(place) == 0))
    return found


def strangers() -> Iterator[socket.socket]:
    """A connection to each socket at which this process listens, which has accepted it."""
    for descriptor in find_listening():
        with socket.socket(fileno=os.dup(descriptor)) as listener:
            stranger = socket.create_connection(listener.getsockname()[:2])
        own = stranger.getsockname()
        wait_until(lambda: any(each.raddr == own for each in psutil.Process().net_connections("tcp")))  # noqa: B023
        yield stranger


def crowd_at(prove: Callable[..., Any]) -> list[socket.socket]:
    """Connections, none of them of ranks, to what gloo listens at once ranks are connected."""
    crowd: list[socket.socket] = []

    def knock(*given: Any) -> Any:
        crowd.extend([] if crowd else strangers())
        return prove(*given)

    mock.patch.object(distributed, "all_to_all_single", knock).start()
    return crowd


def meet(folder: Path, name: str, rank: int, place: str) -> None:
    """Join as one of two ranks, and note how that has failed or else at what this process listens."""
    crowd = crowd_at(distributed.all_to_all_single) if name == "knock" else []
    try:
        meeting.join(rank, 2, place, 20.0, {})
        found: Any = doors()
        ranks.sum_over_ranks(torch.ones(1), "sum of ones")
    except BeastError as error:
        found = [type(error).__name__, str(error)]
    (folder / f"{name}-{rank}.json").write_text(json.dumps(found))
    for each in crowd:
        each.close()
    if name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        os._exit(0)
    try:
        ranks.sum_over_ranks(torch.ones(1), "sum of ones")
    except PeerLost as error:
        (folder / f"{name}-lost.json").write_text(json.dumps(str(error)))


def pair(folder: Path, name: str, place: str) -> list[int]:
    """Fork two ranks that meet; returns their ids."""
    children = []
    for rank in range(2):
        if (child := os.fork()) == 0:
            meet(folder, name, rank, place)
            os._exit(0)
        children.append(child)
    return children


def main(folder: Path, updates: int) -> int:
    """All processes at once; returns how many failed."""
    children = []
    for size in (1, 2, 4):
        for rank in range(size):
            if (child := os.fork()) == 0:
                run_rank(folder, size, rank, updates)
                os._exit(0)
            children.append(child)
    again = f"file://{folder}/again"
    killed = pair(folder, "killed", again)
    children += pair(folder, "tcp", f"tcp://127.0.0.1:{free_port()}")
    children += pair(folder, "knock", f"file://{folder}/knock")
    children += pair(folder, "six", f"tcp://[::1]:{free_port()}")
    for child in killed:
        os.waitpid(child, 0)
    children += pair(folder, "again", again)
    return sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
