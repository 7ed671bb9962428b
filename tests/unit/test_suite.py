"""Rules for files: tests are short, import no other and expect no prose but in golden; modules have few imports."""

import ast
import re
from collections.abc import Callable, Iterator

import pytest

from tests.helpers import ROOT

MODULES = {file: file.read_text() for file in sorted((ROOT / "tests").rglob("*.py"))}
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md")]
MOST_LINES, MOST_WORDS = 400, 4
MOST_OF_A_MODULE, MOST_IMPORTS = 450, 15
#: modules that put the parts of a process or of a run together
ASSEMBLIES = {
    *("zerobeast/__init__.py", "zerobeast/cli/train.py", "zerobeast/plan/resolution.py"),
    *("zerobeast/plan/spaces.py", "zerobeast/api/run.py", "zerobeast/api/policies.py", "common/service/entry.py"),
    *("services/learner/service.py", "services/learner/training_run.py", "services/learner/folder.py"),
    *("services/envserver/service.py", "services/evaluator/service.py", "zerobeast/clients/remote_acting.py"),
}


def is_long(text: str) -> bool:
    return len(text.splitlines()) > MOST_LINES


def imports_a_test(text: str) -> bool:
    return any(name.rpartition(".")[2].startswith("test_") for name in _imported(ast.parse(text)))


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)


def compares_prose(text: str) -> bool:
    """Whether a sentence is expected of an error: as `match=`, or beside `str(...)` in a comparison."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.keyword) and node.arg == "match" and _is_prose(node.value):
            return True
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        if any(ast.unparse(each).startswith("str(") for each in sides) and any(map(_is_prose, sides)):
            return True
    return False


def _is_prose(node: ast.expr) -> bool:
    texts = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return len(" ".join(texts).split()) > MOST_WORDS


@pytest.mark.parametrize(
    ("breaks", "bad"),
    [
        (is_long, "x = 1\n" * (MOST_LINES + 1)),
        (imports_a_test, "from tests.unit.test_tree import leaves"),
        (compares_prose, "with pytest.raises(ValueError, match='this is a whole sentence'): pass"),
    ],
)
def test_no_module_of_tests_breaks_a_rule(breaks: Callable[[str], bool], bad: str) -> None:
    assert breaks(bad)
    assert [str(file) for file, text in MODULES.items() if breaks(text)] == []


def test_pages_name_tests_that_there_are() -> None:
    functions = {name for text in MODULES.values() for name in re.findall(r"def (test_\w+)", text)}
    there = functions | {file.stem for file in MODULES}
    named = {name for page in PAGES for name in re.findall(r"\b(?<!mode )test_[a-z0-9_]+", page.read_text())}
    assert len(named) > 50
    assert named - there == set()


def test_a_module_is_one_idea_that_needs_few_others() -> None:
    texts = {
        str(file.relative_to(ROOT)): file.read_text()
        for top in ("common", "services", "zerobeast")
        for file in (ROOT / top).rglob("*.py")
    }
    assert [name for name, text in texts.items() if len(text.splitlines()) > MOST_OF_A_MODULE] == []
    assert {name for name, text in texts.items() if _fan_in(text) > MOST_IMPORTS} == ASSEMBLIES


def _fan_in(text: str) -> int:
    """How many of our own modules one imports."""
    froms = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    return len({node.module for node in froms if (node.module or "").startswith("zerobeast")})
