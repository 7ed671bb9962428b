"""Contract suites: what each implementation of an interface must do, whether built in or of another package.

A module for each interface, and in it a function for each rule:

    import pytest
    from zerobeast.testing import algorithm

    @pytest.mark.parametrize("rule", algorithm.RULES, ids=str)
    def test_contract(rule):
        rule("my_package.spec:SPEC")
"""
