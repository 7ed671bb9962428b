"""A package that is missing is named with the extra that installs it, as the metadata declare it."""

import re
import tomllib

import pytest

import zerobeast
from tests.helpers import ROOT
from zerobeast.api.python_terms import translate_errors
from zerobeast.common import extras
from zerobeast.common.errors import ConfigError, raise_as

DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        *(("torch", "torch"), ("ale_py", "envserver"), ("psutil", "cli"), ("PIL", "video"), ("minatar", "minatar")),
        *(("mujoco", "mujoco"), ("Box2D", "box2d"), ("pygame", "video"), ("onnx_ir", "export"), ("pandas", "plot")),
        *(("torch.nn", "torch"), ("PIL.Image", "video"), ("numpy", None), ("no_such_module", None), (None, None)),
    ],
)
def test_a_module_has_the_first_extra_that_brings_its_package(module: str | None, extra: str | None) -> None:
    assert extras.extra_of(module) == extra


def test_a_command_names_the_extra_for_all_that_training_needs() -> None:
    assert [extras.extra_of(name, "train") for name in ("rich", "gymnasium", "torch")] == ["train"] * 3
    assert extras.extra_of("PIL", "train") == "video"


def test_the_installed_package_declares_what_pyproject_does() -> None:
    found = extras.packages_of_extras()
    assert [*found] == [*DECLARED]
    for extra, packages in DECLARED.items():
        names = {re.split(r"[\[<>=]", package)[0].lower() for package in packages} - {"zerobeast"}
        assert names <= found[extra], extra
    assert found["train"] == found["envserver"] | found["learner"] | found["cli"] < found["start"] < found["all"]


def test_an_error_of_other_code_about_a_missing_package_names_the_extra() -> None:
    def fails() -> None:
        try:
            raise ModuleNotFoundError("No module named 'mujoco'", name="mujoco")
        except ImportError as error:
            raise RuntimeError("MuJoCo is not installed") from error

    with pytest.raises(ConfigError) as caught, raise_as(ConfigError, "env.id X cannot be made", Exception):
        fails()
    assert "zerobeast[mujoco]" in str(caught.value)


@pytest.mark.parametrize(("missing", "expected"), [("torch", "zerobeast[train]"), ("no_such_module", "no_such_module")])
def test_a_call_from_python_names_the_extra(missing: str, expected: str) -> None:
    def fail() -> None:
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    with pytest.raises(ModuleNotFoundError, match=re.escape(expected)):
        translate_errors(fail)()


def test_a_public_name_whose_module_lacks_a_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zerobeast, "import_module", lambda _name: exec("import absent_matplotlib"))
    monkeypatch.setitem(extras.PACKAGES_OF_MODULES, "absent_matplotlib", {"matplotlib"})
    monkeypatch.delitem(vars(zerobeast), "plot", raising=False)
    with pytest.raises(ModuleNotFoundError, match=re.escape("zerobeast[plot]")):
        _ = zerobeast.plot


@pytest.mark.parametrize(
    ("requirement", "fits"),
    [
        ('swig==4.*; python_version >= "3.99" and extra == "box2d"', False),
        ('box2d; python_version < "3.99" and extra == "box2d"', True),
        ('av>=14; extra == "video"', True),
    ],
)
def test_a_requirement_for_another_python_is_none(
    requirement: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "requires", lambda _package: [requirement])
    extras.packages_of_extras.cache_clear()
    try:
        assert bool(extras.packages_of_extras()) == fits
    finally:
        extras.packages_of_extras.cache_clear()


def test_a_module_may_be_of_several_packages() -> None:
    assert extras.possible_packages("pygame.font") == {"pygame", "pygame-ce"}
    assert extras.possible_packages("Box2D") == {"box2d", "box2d-py"}
    assert extras.possible_packages("Some_Module.part") == {"some-module"}


@pytest.mark.parametrize(("asked", "declared"), [("Of_two", "of-two"), ("of.two", "Of_Two"), ("of-two", "OF.two")])
def test_an_extra_has_one_name_however_it_is_written(
    asked: str, declared: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = {"zerobeast": [f'one[{asked}]; extra == "some"'], "one": [f'two; extra == "{declared}"']}
    monkeypatch.setattr(extras, "requires", lambda package: lines.get(package, []))
    assert [*extras.packages_of("zerobeast", "some")] == ["one", "two"]
