"""Check all that a release has to pass but the upload: `make release-check`.

    python -m zerobeast_tools.release --tag v0.1.0 --out release    of a version that is tagged, with its files

Exit code: 0 all is right, and --out, if it is given, has the bill of materials and, in `dist`, the files to upload;
1 a sentence says what is wrong.
"""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from zerobeast import commands
from zerobeast.common.errors import BeastError
from zerobeast.common.process.terminal import write
from zerobeast_tools.release import building, installation
from zerobeast_tools.release.imports import check_imports
from zerobeast_tools.release.version import check_version

BILL = "zerobeast.cdx.json"


def main(argv: list[str]) -> int:
    """Run the checks one after another, until one fails."""
    parser = commands.make_parser("python -m zerobeast_tools.release", __doc__)
    parser.add_argument("--tree", type=Path, default=Path.cwd(), help="the repository; default: this folder")
    parser.add_argument("--out", type=Path, help="folder to create, for the bill of materials and `dist`")
    parser.add_argument("--tag", default="", help="of the release; empty: none is made yet")
    try:
        flags = parser.parse_args(argv)
        with tempfile.TemporaryDirectory(prefix="release-") as place:
            for name in check(flags.tree, flags.tag, Path(place), flags.out):
                write(f"ok  {name}")
    except BeastError as error:
        write(f"release-check: {error}", sys.stderr)
        return 1
    return 0


def check(tree: Path, tag: str, place: Path, out: Path | None) -> Iterator[str]:
    """The name of each check once it has passed; raises BeastError for the first that fails."""
    if out and out.exists():
        raise BeastError(f"--out {out}: expected a folder that does not exist yet")
    version = check_version(tree, tag)
    yield f"version {version}"
    built = building.build(tree, place)
    yield f"{built.sdist.name} and {built.wheel.name} are built"
    building.check_contents(tree, version, built, building.rebuild_wheel(built.sdist, place))
    yield "contents are those of the tree, and the wheel from the sdist is the same"
    check_imports(built.wheel)
    yield "imports are declared"
    building.run_module("twine", "check", "--strict", str(built.sdist), str(built.wheel))
    yield "an index would accept the metadata"
    constraints = tree / "constraints.txt"
    programs = installation.install(built.wheel, constraints, place)
    yield f"zerobeast[{installation.EXTRA}] is installed in an empty environment, and its packages fit each other"
    bill = place / "release" / BILL
    installation.write_bill(programs, tree, version, bill)
    yield "the bill of materials is written"
    installation.check_use(programs, (tree / "README.md").read_text(), place)
    yield "the first page of README works"
    installation.check_contracts(programs, constraints, place)
    yield "the installed parts keep their contracts"
    if out:
        shutil.copytree(place / "release", out)
        yield f"{out} has the files"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
