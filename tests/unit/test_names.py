"""Names of the product: functions are verbs or what they return, constants have a noun, and a name has one meaning."""

import ast
from collections.abc import Iterator

from tests.helpers import ROOT

FILES = [file for room in ("common", "services", "zerobeast", "tools") for file in sorted((ROOT / room).rglob("*.py"))]
TREES = {file: ast.parse(file.read_text()) for file in FILES if not any(each.is_symlink() for each in file.parents)}
#: words that end like a participle and are none
NO_PARTICIPLES = {"seed", "feed", "need", "embed", "exceed", "speed", "shared"}
PARTICIPLES = set(
    "begun bound chosen drawn found given gone held kept known left lost made met run seen sent shown "
    "spent taken told thrown written".split()
) - {"run", "bound", "found"}
ADJECTIVES = set(
    "alone always away bare busy elsewhere empty enough free full known late leading least long most "
    "needless nothing old open other others ours own past plain private shared short small".split()
)
#: what modules define alike, as an interface of theirs
CONVENTIONS = {"main", "build", "loss", "make", "help_text"}
MOST = 3  #: modules that define a function of the same name


def named(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Functions without properties, and constants, as "def" or "constant" and the name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not any("property" in ast.unparse(d) for d in node.decorator_list):
            yield "def", node.name
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        yield from (("constant", each.id) for each in targets if isinstance(each, ast.Name) and each.id.isupper())


def is_bad(kind: str, name: str) -> bool:
    first = name.lower().lstrip("_").partition("_")[0]
    if kind == "constant":
        return name.lower().lstrip("_") in ADJECTIVES
    return first in PARTICIPLES or (first.endswith("ed") and first not in NO_PARTICIPLES)
