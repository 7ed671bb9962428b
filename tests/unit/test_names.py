"""Names of the product: no function is a participle, no constant an adjective, and a name has one meaning."""

import ast
from collections import Counter
from collections.abc import Iterator

from tests.helpers import ROOT

ROOMS = ("common", "services", "zerobeast", "tools")
TREES = {path: ast.parse(path.read_text()) for room in ROOMS for path in (ROOT / room).rglob("*.py")}
VERBS = {"seed", "reseed", "embed", "feed", "need", "unsigned"}  #: and an adjective, that end like a participle
PARTICIPLES = set(
    "begun chosen drawn given gone held kept known left lost made met seen sent shown spent taken".split()
)
ADJECTIVES = set("alone always elsewhere empty full known late leading least long most nothing ours own plain".split())
CONVENTIONS = {"main", "measure", "make", "ids", "loss"}  #: what modules define alike
MAX_MODULES = 3  #: that define a function of the same name


def names_in(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Functions that are no properties, and constants, each with whether it is one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and "property" not in "".join(map(ast.unparse, node.decorator_list)):
            yield node.name, False
    targets = [each for node in tree.body if isinstance(node, ast.Assign) for each in node.targets]
    yield from ((each.id, True) for each in targets if isinstance(each, ast.Name) and each.id.isupper())


def is_bad(name: str, constant: bool) -> bool:
    word = name.lower().strip("_")
    ends = word.endswith("ed") and "_" not in word and word not in VERBS
    return word in ADJECTIVES if constant else word in PARTICIPLES or ends


def test_a_name_is_more_than_a_participle_or_an_adjective() -> None:
    assert [is_bad(*each) for each in (("settled", False), ("OURS", True), ("explained_variance", False))] == [1, 1, 0]
    found = [(path, name) for path, tree in TREES.items() for name, kind in names_in(tree) if is_bad(name, kind)]
    assert found + [path for path in TREES if is_bad(path.stem, constant=False)] == []


def test_few_modules_define_functions_of_the_same_name() -> None:
    bodies = [node for tree in TREES.values() for node in tree.body if isinstance(node, ast.FunctionDef)]
    counts = Counter(node.name for node in bodies if node.name[0] != "_" and node.name not in CONVENTIONS)
    assert max(counts.values()) <= MAX_MODULES, counts.most_common(3)
