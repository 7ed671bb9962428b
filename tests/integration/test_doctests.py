"""The examples in docstrings are right."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import zerobeast as zb
from tests.helpers import ROOT

FOLDERS = ("common", "services", "zerobeast/rl", "zerobeast/api", "zerobeast/clients", "zerobeast/launcher")
FILES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if ">>> " in path.read_text()]
#: of public names, whose examples train and serve: tests/unit/test_api_examples.py runs them
PUBLIC = {getattr(zb, name).__doc__ for name in zb.__all__}


@pytest.mark.parametrize("file", FILES, ids=str)
def test_examples_give_what_they_show(file: Path, tmp_path: Path) -> None:
    name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    module = import_module(f"zerobeast.{name.removeprefix('zerobeast.')}")
    found = doctest.DocTestFinder().find(module, extraglobs={"root": tmp_path})
    own, runner = [test for test in found if test.docstring not in PUBLIC], doctest.DocTestRunner()
    for test in own:
        runner.run(test)
    assert runner.summarize(verbose=False) == (0, sum(len(test.examples) for test in own))
