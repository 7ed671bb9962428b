"""Scripts that only know gymnasium train on the environments of env-servers: our PPO, and stable-baselines3's."""

import re
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.helpers import ROOT, finished, killed_at_last, python

pytestmark = pytest.mark.timeout(600)

EXAMPLES = ROOT / "docs/examples"
SB3 = Path.home() / ".cache/zerobeast-peers/sb3/bin/python"  #: where `beast bench peers` installs it
#: runs a script with the packages of this environment after those of its own
WITH_OURS = (
    "import runpy, sys; del sys.argv[0]; sys.path.append(sys.argv.pop(0)); "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)


@pytest.fixture
def endpoints(tmp_path: Path) -> Iterator[list[str]]:
    """Two env-servers in processes of their own."""
    found = [f"ipc://{tmp_path}/{name}" for name in "ab"]
    with ExitStack() as stack:
        for endpoint in found:
            command = ("-m", "zerobeast.services.envserver", "--envserver.endpoint", endpoint)
            stack.enter_context(killed_at_last(python(*command, stdout=None, stderr=None)))
        yield found


@pytest.mark.parametrize("count", [0, 2])
def test_our_ppo_learns_cartpole_here_and_on_env_servers(endpoints: list[str], count: int) -> None:
    code, out, error = finished(python(EXAMPLES / "ppo.py", *endpoints[:count]))
    assert (code, error) == (0, "")
    assert float(re.findall(r"return (\S+)", out)[-1]) > 400


@pytest.mark.skipif(not SB3.exists(), reason="stable-baselines3 is not installed: `beast bench peers` does it")
def test_the_ppo_of_stable_baselines3_learns_cartpole_on_env_servers(endpoints: list[str]) -> None:
    ours = sysconfig.get_paths()["purelib"]
    command = ("-c", WITH_OURS, ours, EXAMPLES / "sb3_vec_env.py", *endpoints)
    code, out, error = finished(python(*command, interpreter=SB3, variables={"OMP_NUM_THREADS": "1"}))
    assert code == 0, error
    assert float(out.split()[-1]) > 200, "a random policy reaches 22"
