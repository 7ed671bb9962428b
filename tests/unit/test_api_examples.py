"""The Python API: the docstring of each public name says what it takes, and its example does what it shows."""

import doctest
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

import zerobeast as zb
from tests.helpers import ROOT, free_port, killed_at_last

#: endpoints of the examples, and the setting of each
ENDPOINTS = {
    "tcp://127.0.0.1:5550": "BEAST_ENVSERVER__ENDPOINT",
    "tcp://127.0.0.1:5555": "BEAST_BROKER__ENDPOINT",
    "tcp://127.0.0.1:5560": "BEAST_LEARNER__ENDPOINT",
}
SHOWN = {
    name
    for page in ROOT.glob("docs/api/*.md")
    for name in re.findall(r"^::: zerobeast\.(\w+)$", page.read_text(), re.MULTILINE)
}


def documentation(name: str) -> str:
    """The docstring of a public name itself, not that of a base class."""
    return inspect.cleandoc(getattr(zb, name).__doc__ or "")


def described_arguments(text: str) -> set[str]:
    """The names in the section of a docstring on arguments."""
    section = re.search(r"^Args:\n((?:  .*\n?|\n)+)", text, re.MULTILINE)
    rows = re.findall(r"^  (\*{0,2}\w+(?:, \w+)*):", section[1], re.MULTILINE) if section else []
    return {name.strip("* ") for row in rows for name in row.split(",")}


def test_the_reference_shows_every_public_name() -> None:
    assert set(zb.__all__) == SHOWN


@pytest.mark.parametrize("name", zb.__all__)
def test_a_docstring_says_what_each_argument_is_and_has_an_example(name: str) -> None:
    part, text = getattr(zb, name), documentation(name)
    assert re.search(r"^Examples:\n.*^  >>> ", text, re.DOTALL | re.MULTILINE)
    is_error = isinstance(part, type) and issubclass(part, Exception)
    if is_error or name in ("RunConfig", "EnvSpec", "ArraySpace"):  # whose fields the reference lists
        return
    described = described_arguments(text)
    assert {*inspect.signature(part).parameters} - {"runs"} <= described | {"runs"}
    if inspect.isfunction(part):
        assert "Raises" in text


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A folder with an env-server, and what the endpoints of the examples are there."""
    folder, patch = tmp_path_factory.mktemp("examples"), pytest.MonkeyPatch()
    ports = {endpoint: f"tcp://127.0.0.1:{free_port()}" for endpoint in ENDPOINTS}
    for endpoint, variable in ENDPOINTS.items():
        patch.setenv(variable, ports[endpoint])
    patch.setenv("PYTHONPATH", str(ROOT / "src"))
    patch.chdir(folder)
    server = subprocess.Popen([sys.executable, "-m", "zerobeast.services.envserver"])
    with killed_at_last(server):
        yield ports
    patch.undo()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_example_does_what_it_shows(place: dict[str, str]) -> None:
    finder, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for name in sorted(zb.__all__, key=lambda name: name != "train"):  # whose run the others open
        text = documentation(name)
        for endpoint, free in place.items():
            text = text.replace(endpoint, free)
        runner.run(finder.get_doctest(text, {}, f"zerobeast.{name}", None, None))
    assert runner.summarize(verbose=False).failed == 0
