"""Which packages the product imports, and whether its metadata declare them."""

import ast
import re
import sys
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from importlib.metadata import packages_distributions
from pathlib import Path

from zerobeast.common.errors import BeastError
from zerobeast.common.extras import PRODUCT, normalise, packages_of, parse_requirement, possible_packages

MISSING = {"ImportError", "ModuleNotFoundError"}  #: what is caught if a module need not be there
BY_HAND = {"gfootball"}  #: has no wheel, so no extra can bring it: who plays it installs it from its sources


def check_imports(wheel: Path) -> None:
    """Raise BeastError if a module in a wheel imports a package that its metadata do not declare.

    A module whose absence is caught needs no declaration. What extras of other packages bring is declared by those, as
    far as these packages are installed here.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        lines = message_from_bytes(archive.read(metadata)).get_all("Requires-Dist", [])
        texts = {name: archive.read(name).decode() for name in names if name.endswith(".py")}
    declared, homes = {PRODUCT, *BY_HAND, *_list_declared(lines)}, packages_distributions()
    for name, text in texts.items():
        for module, line in _needed_modules(text):
            packages = {*map(normalise, homes.get(module, ()))} or possible_packages(module)
            if module not in sys.stdlib_module_names and not packages & declared:
                package = " or ".join(sorted(packages))
                raise BeastError(f"{name}:{line}: {module} is imported, expected {package} in pyproject.toml")


def _list_declared(lines: list[str]) -> Iterator[str]:
    """The packages that metadata ask for, and what the extras of these packages add."""
    for package, extras, _ in map(parse_requirement, lines):
        yield package
        for extra in extras if package != PRODUCT else ():
            yield from packages_of(package, extra)


def _needed_modules(text: str) -> Iterator[tuple[str, int]]:
    """Top-level name and line of what a text imports, but for modules without which it goes on, as it says once."""
    tree = ast.parse(text)
    optional = {name for node in ast.walk(tree) for each in _optional_statements(node) for name, _ in _imports_in(each)}
    return ((name, line) for name, line in _imports_in(tree) if name not in optional)


def _imports_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from ((each.name.partition(".")[0], node.lineno) for each in node.names)
            case ast.ImportFrom(level=0):
                yield (node.module or "").partition(".")[0], node.lineno
            case ast.Call(args=[ast.Constant(value=str(name)), *_]) if "import_module" in ast.unparse(node.func):
                yield name.partition(".")[0], node.lineno


def _optional_statements(node: ast.AST) -> list[ast.stmt]:
    """The statements of a node that may lack a module, because the program goes on without it."""
    match node:
        case ast.Try() if any(_names_missing(each.type) and not _raises(each) for each in node.handlers):
            return node.body
        case ast.With() if any(_suppresses(each.context_expr) for each in node.items):
            return node.body
    return []


def _suppresses(manager: ast.expr) -> bool:
    return isinstance(manager, ast.Call) and ast.unparse(manager.func).endswith("suppress") and _names_missing(manager)


def _names_missing(node: ast.AST | None) -> bool:
    return node is not None and bool(MISSING & set(re.findall(r"\w+", ast.unparse(node))))


def _raises(handler: ast.ExceptHandler) -> bool:
    return isinstance(handler.body[-1], ast.Raise)
