"""The rules of `zerobeast.rl.protocol.Algorithm` and of its `Learning`, for an AlgorithmSpec, its name or a reference.

    import pytest
    from zerobeast.testing import algorithm

    @pytest.mark.parametrize("rule", algorithm.RULES, ids=str)
    def test_contract(rule):
        rule("my_package.spec:SPEC", learning_rate=0.01)

Keywords are settings of the algorithm, for small runs that learn from little: see `zerobeast.testing.small_run`.
"""

from zerobeast.testing import acting, learning

RULES = (*acting.RULES, *learning.RULES)
