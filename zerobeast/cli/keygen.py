"""Make keys for encrypted tcp: a public and a secret key file for each role, or one more pair for one role.
Every service of a run needs --security.keys FOLDER, with all public keys and its own secret key.
"""

from pathlib import Path

from zerobeast import commands
from zerobeast.common.process.roles import SERVICES
from zerobeast.common.process.terminal import write
from zerobeast.common.transport import add_key, make_keys


def main(argv: list[str]) -> int:
    """Run `beast keygen`. Raises ConfigError if the folder has keys already, none to add to, or cannot be written."""
    parser = commands.make_parser("beast keygen", __doc__)
    parser.add_argument("folder", type=Path, help="folder for public/ and secret/")
    parser.add_argument(
        "role", nargs="?", choices=SERVICES, help="add another key pair for this role, <role>-2 and so on"
    )
    options = parser.parse_args(argv)
    for file in add_key(options.folder, options.role) if options.role else make_keys(options.folder):
        write(str(file))
    return 0
