"""Every algorithm keeps the rules of the interface: our own, and those of docs/examples."""

import pytest

from tests.build.batches import ALGORITHMS
from tests.helpers import ROOT
from zerobeast.common.settings import AlgorithmSpec
from zerobeast.rl.algos.sac.config import SACConfig
from zerobeast.testing import algorithm
from zerobeast.testing.rules import Rule

pytestmark = pytest.mark.slow
EXAMPLES = ROOT / "docs" / "examples"
#: by the folder that a package stands in
OF_OTHERS = {
    "awr.config:SPEC": EXAMPLES / "awr",
    "two_timescale.config:SPEC": EXAMPLES / "two_timescale",
    "own_everything.config:SPEC": EXAMPLES / "own_everything",
    "rnd.spec:SPEC": EXAMPLES,
}
SETTINGS = {"sac": {"temperature": 0.05}}  #: with which one learns sooner
#: everything that is off by default
RECIPE = {"atoms": 51, "normalize_returns": True, "target_network": False, "policy_delay": 2, "temperature": 0.05}
NORMED = AlgorithmSpec("normed_sac", SACConfig, "tests.build.control:NormedSAC")


@pytest.mark.parametrize("rule", algorithm.RULES, ids=str)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_our_own_keep_it(name: str, rule: Rule) -> None:
    rule(name, **SETTINGS.get(name, {}))


@pytest.mark.parametrize("rule", algorithm.RULES, ids=str)
def test_categorical_critics_with_batch_norms_keep_it(rule: Rule) -> None:
    if rule.name == "only a truncated end has a future":
        pytest.skip("what follows an end is in the batch whose statistics normalise all, as in CrossQ")
    rule(f"{__name__}:NORMED", **RECIPE)


@pytest.mark.parametrize("rule", algorithm.RULES, ids=str)
@pytest.mark.parametrize("reference", OF_OTHERS)
def test_those_of_other_packages_keep_it(reference: str, rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(OF_OTHERS[reference])
    if reference.startswith("rnd") and rule.name == "only a truncated end has a future":
        pytest.skip("an observation that is new earns a bonus, also at the end")
    rule(reference)
