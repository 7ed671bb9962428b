"""A script that only knows gymnasium trains in two networks, one of which is cut off for a while."""

import re
from contextlib import ExitStack

import pytest

from tests.chaos.namespaces import explain_missing, networks
from tests.helpers import ROOT, killed_at_last

pytestmark = pytest.mark.timeout(600)


@pytest.mark.nightly
@pytest.mark.skipif(bool(why := explain_missing()), reason=f"there are no networks of one's own here: {why}")
def test_ppo_trains_on_while_one_network_is_cut_off_and_when_it_is_back() -> None:
    endpoints = ["tcp://127.0.0.1:5550", "tcp://10.9.0.2:5550"]
    with ExitStack() as stack, networks() as found:
        for number, endpoint in enumerate(endpoints, 1):
            flags = ("--envserver.endpoint", endpoint, "--insecure")
            server = found.python(number, "-m", "zerobeast.services.envserver", *flags, stdout=None, stderr=None)
            stack.enter_context(killed_at_last(server))
        script = found.python(1, ROOT / "docs/examples/ppo.py", *endpoints, stderr=None)
        stack.enter_context(killed_at_last(script))
        assert script.stdout is not None
        lines = iter(script.stdout.readline, "")

        def until(least: int, most: int) -> None:
            """Read on until `least` to `most` percent of an update's steps were valid."""
            assert any(least <= int(re.findall(r"(\d+)% valid", line)[0]) <= most for line in lines)

        until(90, 100)
        found.cut()
        until(45, 55)  # no step of this update comes from the half that is cut off
        found.mend()
        until(90, 100)
        (*_, last) = lines
        assert float(re.findall(r"return (\S+)", last)[0]) > 400
        assert script.wait() == 0
