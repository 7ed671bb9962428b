"""Reads what `#:` comments say of attributes, which the API reference takes for their docstrings."""

import re
from typing import Any

import griffe

COMMENT = re.compile(r"#: ?(.*)$")
MARK = "#:"


class CommentedAttributes(griffe.Extension):
    """Documents attributes by the `#:` comment behind or above them; drops what a constructor sets without one."""

    def on_class_members(self, *, cls: griffe.Class, **_others: Any) -> None:
        """Called by griffe once it has read a class."""
        for name, attr in [*cls.attributes.items()]:
            if "property" in attr.labels or attr.docstring is not None or attr.lineno is None:
                continue
            lines = attr.lines_collection[attr.filepath]
            if text := comment_of(lines, attr.lineno, attr.endlineno or attr.lineno):
                attr.docstring = griffe.Docstring(text, parent=attr)
            elif lines[attr.lineno - 1].lstrip().startswith("self."):
                cls.del_member(name)


def comment_of(lines: list[str], first: int, last: int) -> str:
    """The text of the comment behind lines `first` to `last`, counted from 1, or right above them; empty if none."""
    if found := COMMENT.search(lines[last - 1]):
        return found[1]
    above: list[str] = []
    for line in reversed(lines[: first - 1]):
        if not line.strip().startswith(MARK):
            break
        above.insert(0, line.strip().removeprefix(MARK).strip())
    return " ".join(above)
