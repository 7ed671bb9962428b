"""Scripts that only know gymnasium train on the environments of env-servers: our PPO, and stable-baselines3's."""

import re
import sysconfig
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
COMMANDS = {
    "ppo.py": ((EXAMPLES / "ppo.py",), {}),
    "sb3": (("-c", WITH_OURS, sysconfig.get_paths()["purelib"], EXAMPLES / "sb3_vec_env.py"), {"interpreter": SB3}),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_script_learns_cartpole_on_two_env_servers(tmp_path: Path, name: str) -> None:
    if name == "sb3" and not SB3.exists():
        pytest.skip("stable-baselines3 is not installed: `beast bench peers` does it")
    endpoints = [f"ipc://{tmp_path}/{each}" for each in "ab"]
    command, options = COMMANDS[name]
    with ExitStack() as stack:
        for endpoint in endpoints:
            server = ("-m", "zerobeast.services.envserver", "--envserver.endpoint", endpoint)
            stack.enter_context(killed_at_last(python(*server, stdout=None, stderr=None)))
        code, out, error = finished(python(*command, *endpoints, variables={"OMP_NUM_THREADS": "1"}, **options))
    assert code == 0, error
    assert float(re.findall(r"([\d.]+)\s*$", out)[-1]) > 200, "a random policy reaches 22"
