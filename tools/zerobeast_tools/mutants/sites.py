"""Where a module can be made wrong in one small place, and how."""

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

ROOMS = ("common", "services", "zerobeast")
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
TWINS = {"min": "max", "max": "min", "any": "all", "all": "any"}
UNSEEN_MODULES = {"log", "warnings"}  #: calls of these are for people: a test need not notice that one is missing

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
Node = TypeVar("Node", bound=ast.AST)
Change = tuple[ast.expr | ast.stmt, ast.expr | ast.stmt | None]  #: a node, and what stands for it; None: nothing


@dataclass(frozen=True)
class Mutant:
    """One fault: the source between two places of a file, and what stands there instead."""

    path: str
    line: int
    span: tuple[int, int]  #: bytes of the file
    old: str
    new: str
    function: str  #: in which it is, with the classes and functions around that
    copy: int  #: how many equal ones precede it in this function

    @property
    def room(self) -> str:
        """The first three folders, or fewer for a file that is in no third."""
        return "/".join(Path(self.path).parts[:-1][:3])

    def rank(self, seed: int) -> bytes:
        """Its place in the draw of a seed, which stays the same while other parts of the file change."""
        identity = (seed, self.path, self.function, self.old, self.new, self.copy)
        return hashlib.sha256(repr(identity).encode()).digest()

    def __str__(self) -> str:
        """One line for a person."""
        return f"{self.path}:{self.line}: {' '.join(self.old.split())[:60]} -> {' '.join(self.new.split())[:60]}"


def modules(top: Path) -> Iterator[Path]:
    """The product's modules, each once: `rglob` does not follow links."""
    for room in ROOMS:
        yield from sorted((top / room).rglob("*.py"))


def mutants(path: Path, top: Path) -> list[Mutant]:
    """All faults of one module that this tool can make."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[Mutant] = []
    copies: Counter[tuple[str, str, str]] = Counter()
    for function, node, new in _changes(ast.parse(source), ""):
        span = (
            starts[node.lineno - 1] + node.col_offset,
            starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0),
        )
        text = "pass" if new is None else ast.unparse(new)
        text = f"({text})" if isinstance(new, ast.expr) else text
        place = function, source[slice(*span)].decode(), text
        found.append(Mutant(str(path.relative_to(top)), node.lineno, span, *place[1:], function, copies[place]))
        copies[place] += 1
    return found


def apply_mutant(mutant: Mutant, source: bytes) -> bytes:
    """The module with this fault."""
    begin, end = mutant.span
    return source[:begin] + mutant.new.encode() + source[end:]


def _changes(tree: ast.AST, inside: str) -> Iterator[tuple[str, *Change]]:
    """Functions, nodes of theirs and what can stand for each; None: nothing."""
    for node in ast.iter_child_nodes(tree):
        name = f"{inside}.{node.name}" if isinstance(node, FUNCTIONS | ast.ClassDef) else inside
        if isinstance(node, FUNCTIONS):
            yield from ((name, *change) for statement in node.body for change in _within(statement))
        yield from _changes(node, name)


def _within(top: ast.AST) -> Iterator[Change]:
    """Those of a statement, but not of functions in it, which `_changes` visits by themselves."""
    if isinstance(top, FUNCTIONS | ast.ClassDef):
        return
    yield from _change(top)
    annotation = top.annotation if isinstance(top, ast.AnnAssign) else None
    for child in ast.iter_child_nodes(top):
        if child is not annotation and not isinstance(child, ast.JoinedStr):
            yield from _within(child)


def _change(node: ast.AST) -> Iterator[Change]:
    for kind, change in CHANGES.items():
        if isinstance(node, kind):
            yield from change(node)


def _comparison(node: ast.Compare) -> Iterator[Change]:
    if len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        yield node, _with(node, ops=[COMPARISONS[type(node.ops[0])]()])


def _and_or(node: ast.BoolOp) -> Iterator[Change]:
    yield node, _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())


def _not(node: ast.UnaryOp) -> Iterator[Change]:
    if isinstance(node.op, ast.Not):
        yield node, node.operand


def _operator(node: ast.BinOp) -> Iterator[Change]:
    if type(node.op) in OPERATORS:
        yield node, _with(node, op=OPERATORS[type(node.op)]())


def _constant(node: ast.Constant) -> Iterator[Change]:
    if isinstance(node.value, bool):
        yield node, ast.Constant(not node.value)
    elif isinstance(node.value, int | float):
        yield node, ast.Constant(node.value + 1)


def _twin(node: ast.Call) -> Iterator[Change]:
    if isinstance(node.func, ast.Name) and node.func.id in TWINS:
        yield node, _with(node, func=ast.Name(TWINS[node.func.id]))


def _condition(node: ast.If | ast.IfExp | ast.While) -> Iterator[Change]:
    if not isinstance(node.test, ast.Constant | ast.Compare | ast.UnaryOp):  # which change by themselves
        yield node.test, ast.UnaryOp(ast.Not(), node.test)


def _change_return(node: ast.Return) -> Iterator[Change]:
    if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
        yield node, ast.Return(ast.Constant(None))


def _change_call(node: ast.Expr) -> Iterator[Change]:
    if isinstance(node.value, ast.Call) and ast.unparse(node.value.func).partition(".")[0] not in UNSEEN_MODULES:
        yield node, None


def _change_assignment(node: ast.Assign) -> Iterator[Change]:
    if isinstance(node.targets[0], ast.Attribute | ast.Subscript):
        yield node, None


def _leave_out(node: ast.stmt) -> Iterator[Change]:
    yield node, None


#: what can be made of each kind of node
CHANGES: dict[Any, Callable[[Any], Iterator[Change]]] = {
    ast.Compare: _comparison,
    ast.BoolOp: _and_or,
    ast.UnaryOp: _not,
    ast.BinOp: _operator,
    ast.Constant: _constant,
    ast.Call: _twin,
    (ast.If, ast.IfExp, ast.While): _condition,
    ast.Return: _change_return,
    ast.Expr: _change_call,
    ast.Assign: _change_assignment,
    (ast.AugAssign, ast.Raise, ast.Continue, ast.Break, ast.Delete): _leave_out,
}


def _with(node: Node, **fields: object) -> Node:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed
