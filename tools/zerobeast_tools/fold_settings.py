"""Write once what the runs of a sweep have in common: python -m zerobeast_tools.fold_settings FOLDER ...

The settings that all config.yaml in the folders below FOLDER share go to FOLDER/base.yaml, which each of them names as
its `base`, and keep theirs. The text of each entry stays as it is.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

BASE = "base.yaml"


def entries(text: str) -> Iterator[tuple[str, str]]:
    """Section and text of each entry of a file as `dump` writes it; those outside of any have the section ""."""
    section, found = "", list[tuple[str, str]]()
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


def written(entries: list[tuple[str, str]]) -> str:
    """The text of a file with these entries."""
    sections = dict.fromkeys(section for section, _ in entries)
    return "".join(
        section + "".join(text for each, text in entries if each == section) for section in sorted(sections, key=bool)
    )


def fold(folder: Path) -> None:
    """Fold the settings of the runs in a folder."""
    files = {file: [*entries(file.read_text())] for file in sorted(folder.glob("*/config.yaml"))}
    if not files or (folder / BASE).exists():
        sys.exit(f"{folder}: expected runs, and no {BASE} yet")
    first, *others = files.values()
    shared = [entry for entry in first if all(entry in other for other in others)]
    (folder / BASE).write_text(written(shared))
    for file, found in files.items():
        file.write_text(f"base: ../{BASE}\n" + written([entry for entry in found if entry not in shared]))


if __name__ == "__main__":
    for folder in map(Path, sys.argv[1:]):
        fold(folder)
