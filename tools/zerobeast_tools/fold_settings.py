"""Write once what the runs of a sweep have in common: python -m zerobeast_tools.fold_settings FOLDER ...

The settings that all config.yaml in the folders below FOLDER share go to FOLDER/base.yaml, which each of them names as
its `base`, and keep theirs; of runs with one algorithm among several, theirs go to FOLDER/<algo>.yaml in between. Their
text stays as it is.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

BASE = "base.yaml"
Entry = tuple[str, str]  #: section and text


def split_entries(text: str) -> Iterator[Entry]:
    """Section and text of each entry of a file as `dump` writes it; those outside of any have the section ""."""
    section, found = "", list[Entry]()
    for line in text.splitlines(keepends=True):
        if not line.startswith(" ") and not line.startswith("- "):
            section = line if line.rstrip().endswith(":") else ""
            if not section:
                found.append(("", line))
        elif line.startswith("  ") and line[2] not in " -" and section:
            found.append((section, line))
        else:  # goes on with the entry above
            found[-1] = (found[-1][0], found[-1][1] + line)
    yield from found


def join_entries(entries: list[Entry]) -> str:
    """The text of a file with these entries."""
    sections = dict.fromkeys(section for section, _ in entries)
    return "".join(
        section + "".join(text for each, text in entries if each == section) for section in sorted(sections, key=bool)
    )


def fold(folder: Path) -> None:
    """Fold the settings of the runs in a folder."""
    files = {file: [*split_entries(file.read_text())] for file in sorted(folder.glob("*/config.yaml"))}
    if not files or (folder / BASE).exists():
        sys.exit(f"{folder}: expected runs, and no {BASE} yet")
    shared = common_entries(files.values())
    (folder / BASE).write_text(join_entries(shared))
    by_algo: dict[str, dict[Path, list[Entry]]] = {}
    for file, found in files.items():
        algo = next((text.split()[1] for section, text in found if not section and text.startswith("algo:")), "")
        by_algo.setdefault(algo, {})[file] = found
    for algo, own in by_algo.items():
        alike = common_entries(own.values()) if len(own) > 1 and len(by_algo) > 1 else shared
        name = BASE if alike == shared else f"{algo}.yaml"
        if alike != shared:
            (folder / name).write_text(
                f"base: {BASE}\n" + join_entries([entry for entry in alike if entry not in shared])
            )
        for file, found in own.items():
            file.write_text(f"base: ../{name}\n" + join_entries([entry for entry in found if entry not in alike]))


def common_entries(files: Iterable[Sequence[Entry]]) -> list[Entry]:
    """The entries that all have."""
    first, *others = files
    return [entry for entry in first if all(entry in other for other in others)]


if __name__ == "__main__":
    for folder in map(Path, sys.argv[1:]):
        fold(folder)
