"""A class can be found by its name: no two classes of the product share one."""

import ast
from collections import defaultdict
from pathlib import Path

import zerobeast

ROOT = Path(zerobeast.__file__).parents[1]


def test_no_two_classes_share_a_name() -> None:
    places = defaultdict(list)
    for folder in ("common", "services", "tools", "zerobeast"):
        for path in (ROOT / folder).rglob("*.py"):  # rglob follows no links
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
    assert len(places) > 200, "they were found at all"
