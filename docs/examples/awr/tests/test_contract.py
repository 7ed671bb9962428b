"""The algorithm keeps what ZeroBeast expects of one: python -m pytest tests."""

import pytest

from zerobeast.testing import algorithm
from zerobeast.testing.rules import Rule


@pytest.mark.parametrize("rule", algorithm.RULES, ids=str)
def test_the_algorithm(rule: Rule) -> None:
    rule("awr")
