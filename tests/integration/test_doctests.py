"""The examples in docstrings are right."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

from tests.helpers import ROOT

FOLDERS = ("common", "services", "zerobeast/rl", "zerobeast/api", "zerobeast/clients", "zerobeast/launcher")
FILES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if ">>> " in path.read_text()]


@pytest.mark.parametrize("file", FILES, ids=str)
def test_examples_give_what_they_show(file: Path, tmp_path: Path) -> None:
    name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    module = import_module(f"zerobeast.{name.removeprefix('zerobeast.')}")
    assert doctest.testmod(module, extraglobs={"root": tmp_path}) == (0, sum(map(len, _examples(module))))


def _examples(module: object) -> list[list[doctest.Example]]:
    return [test.examples for test in doctest.DocTestFinder().find(module)]
