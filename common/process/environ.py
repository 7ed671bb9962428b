"""Environment variables: what commands and services set for themselves, and what environments do not get."""

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress

#: before pydantic is imported, which otherwise imports what any package description on its way names
NO_PLUGINS = {"PYDANTIC_DISABLE_PLUGINS": "__all__"}
#: what Python does with -P, for every process that a command starts, those of multiprocessing too
SAFE_PATH = {"PYTHONSAFEPATH": "1"}
#: variable with the names, with commas, of secrets that environments get all the same
EXEMPT_NAMES = "ZEROBEAST_PASS_ON"
_SECRET = re.compile(
    r"""(?ix) ((^|_|API|AUTH|ACCESS|PRIVATE|SECRET)KEY | TOKEN | SECRET | PASSW(OR)?D | PASSPHRASE | CREDENTIAL
    | CONNECTION_STRING | DATABASE_URL | ^GIT_CONFIG_(COUNT|KEY|VALUE))S?\d*(_|$)
    | ((^|_|SSH)PASS | _PWD | _PAT)\d*$"""
)


def drop_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables without those whose names say that they hold a secret, such as WANDB_API_KEY and AWS_SECRET_KEY.

    Programs that an environment starts find the modules beside them, whatever SAFE_PATH does to ours.
    """
    secrets = {name for name in environ if _SECRET.search(name)} - {*environ.get(EXEMPT_NAMES, "").split(",")}
    return {name: value for name, value in environ.items() if name not in secrets and name not in SAFE_PATH}


def restrict_imports() -> None:
    """Import neither plugins that any package describes, nor modules of the folder in which `python -m` was started."""
    os.environ.update(NO_PLUGINS)
    with suppress(FileNotFoundError):  # that folder is gone
        if not sys.flags.safe_path and sys.path[0] == os.getcwd():
            del sys.path[0]


def withhold_secrets() -> None:
    """Remove the same from the variables of this process."""
    for name in os.environ.keys() - drop_secrets(os.environ).keys():
        del os.environ[name]
