"""The parts of this package keep what ZeroBeast expects of them: python -m pytest tests."""

import pytest

from zerobeast.testing import algorithm, backend
from zerobeast.testing.rules import Rule


@pytest.mark.parametrize("rule", algorithm.RULES, ids=str)
def test_the_algorithm(rule: Rule) -> None:
    rule("annealed_ppo")


@pytest.mark.parametrize("rule", backend.RULES, ids=str)
def test_the_backend(rule: Rule) -> None:
    rule("point/Reach-v0", steps=10)
