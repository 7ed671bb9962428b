"""An untrusted checkpoint: whatever its entries hold, the learner resumes from it or says in words why not."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.build.learners import FakeActor, learned, opened, run_config
from zerobeast.common.errors import CheckpointError
from zerobeast.common.settings.tree import RunConfig
from zerobeast.services.learner.checkpoint import load_checkpoint

REPLACEMENTS: list[Any] = [None, -1, 1e308, "text", [], {}, [[1]], torch.ones(2, 3), {"a": torch.zeros(0)}, 2**70]
REPLACED_BY_TENSOR = 7


@pytest.fixture
def config(tmp_path: Path, actor_of: Callable[..., FakeActor]) -> RunConfig:
    """The settings of a run that has a checkpoint."""
    config = run_config(tmp_path, endpoint=f"ipc://{tmp_path}/l")
    learned(config, actor_of(config), range(1, 3))
    return config


def places(tree: Any, depth: int, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every entry down to a depth."""
    if path:
        yield path
    if depth and isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from places(value, depth - 1, (*path, key))


def replaced(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(tree)
    branch = changed
    for key in path[:-1]:
        branch = branch[key]
    branch[path[-1]] = value
    return changed


def test_a_checkpoint_is_held_to_its_schema(config: RunConfig, tmp_path: Path) -> None:
    path = config.folder / "checkpoint.pt"
    good = load_checkpoint(path)
    sentences = []
    used = [place for place in places(good, 3) if place[0] not in ("config", "policy") or len(place) == 1]
    for number, place in [*enumerate(used), (REPLACED_BY_TENSOR, ("statistics", "lost"))]:
        torch.save(replaced(good, place, REPLACEMENTS[number % len(REPLACEMENTS)]), path)
        try:
            with opened(config):
                pass
        except CheckpointError as error:
            sentences.append(str(error))
    assert all(sentence.startswith(f"{path}: ") for sentence in sentences), sentences
    assert len(sentences) > len(used) / 2
