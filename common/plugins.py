"""Parts that other packages bring: algorithms, networks and environments, found by name or imported from a reference.

A name is that of an entry point of an installed package, such as `ppo`; our own parts are found in the same way. A
reference names an object in a module or in a file, which need not be installed:

    package.module:NAME           a module that is installed, or else in the folder that this process was started in
    folder/package.module:NAME    a module in that folder, as if the folder were on PYTHONPATH
    folder/script.py:NAME         a file, which is imported under a name of its own

What a reference was found in is searched for further modules, after everything that is installed. Nothing else is:
no folder is ever added to sys.path, and what an entry point names is only looked for among what is installed.
"""

import os
import re
import sys
import sysconfig
import zlib
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from zerobeast.common.errors import ConfigError, name_subject, raise_as
from zerobeast.common.files.atomic import explain_os_errors
from zerobeast.common.text import did_you_mean, suggestion

MOST_FILES = 1000  #: versions of scripts that stay imported
MAIN = ("__main__", "__mp_main__")  #: both names of the script that a process runs


@cache
def find_entry_points(group: str) -> Mapping[str, tuple[EntryPoint, ...]]:
    """The entry points of a group by name, such as those of "zerobeast.algorithms"."""
    found: dict[str, dict[str, EntryPoint]] = {}
    for entry in sorted(load_entry_points().select(group=group)):  # one may be there twice, as with a stale dist-info
        found.setdefault(entry.name, {}).setdefault(entry.value, entry)
    return {name: tuple(entries.values()) for name, entries in found.items()}


def find_part(group: str, name: str, setting: str) -> Any:
    """The part that a setting names.

    Args:
      group: of entry points.
      name: of an entry point, or a reference.
      setting: the setting's name, for errors.

    Raises:
      ConfigError: it is unknown, several packages bring one of this name, or it cannot be imported.
    """
    with name_subject(setting, name):
        if ":" in name:
            return load_reference(name, f"{setting} {name}", given=True)
        if name not in find_entry_points(group):
            raise ConfigError(f"{setting} {name!r}: {alternatives(group, name)}")
        return load_reference(reference_of(group, name, f"{setting} {name}", "module:NAME"), f"{setting} {name}")


def alternatives(group: str, unknown: str, others: Sequence[str] = ()) -> str:
    """What a setting may name instead of a part that is not installed; `others` are names beside those of parts."""
    names = dict.fromkeys([*others, *find_entry_points(group)])
    hint = did_you_mean(unknown, names) or "; a package that brings it has to be installed here"
    return f"expected {' or '.join(filter(None, (', '.join(names), 'module:NAME')))}{hint}"


def claim_of(group: str, name: str) -> str:
    """The entry point whose name, with * for any characters but / and ** for any, fits best; empty if none does."""
    claims = [each for each in find_entry_points(group) if _pattern(each).fullmatch(name)]
    return max(claims, key=lambda each: (len(each.partition("*")[0]), len(each)), default="")


@cache
def _pattern(claim: str) -> re.Pattern[str]:
    parts = (".*".join(map(re.escape, part.split("**"))) for part in re.split(r"(?<!\*)\*(?!\*)", claim))
    return re.compile("[^/]*".join(parts))


def reference_of(group: str, name: str, what: str, expected: str = "one") -> str:
    """The reference that an entry point stands for; `what` needs it, for errors.

    Raises:
      ConfigError: several packages bring one of this name.
    """
    first, *others = entries = find_entry_points(group)[name]
    if others:
        brought = " and ".join(f"{entry.value} of {entry.dist.name if entry.dist else '?'}" for entry in entries)
        raise ConfigError(f"{what}: two packages have one of this name, {brought}: expected {expected}")
    return first.value


def load_reference(reference: str, what: str, *, given: bool = False) -> Any:
    """The object that a reference stands for.

    Args:
      reference: of an entry point, or one that was given.
      what: needs it, for errors.
      given: whether a user has given it, so that it may be found in a folder.

    Raises:
      ConfigError: the module cannot be imported or has no such name.
    """
    home, _, name = reference.rpartition(":")
    module = module_of(home, what, given=given)
    if not hasattr(module, name):
        raise ConfigError(f"{what}: {home} has no {name!r}{suggestion(name, public(module))}")
    return getattr(module, name)


def module_of(home: str, what: str, *, given: bool = True) -> ModuleType:
    """Import what stands before the name in a reference; a file with `__name__` other than "__main__".

    Raises:
      ConfigError: it cannot be imported; the error begins with `what`.
    """
    _imported.append(home)
    try:
        with raise_as(ConfigError, f"{what}: {home} cannot be imported", Exception, SystemExit):
            return _from_folder(home) if given else import_module(home)
    finally:
        _imported.pop()


def is_own(module: ModuleType) -> bool:
    """Whether a module is neither installed nor of this package."""
    file, ours = str(getattr(module, "__file__", None) or ""), module.__name__.partition(".")[0] == "zerobeast"
    return file.endswith(".py") and not ours and not _is_packaged(file) and Path(file).is_file()


@cache  # one of thousands of modules is the user's, and each loading of settings asks about all
def _is_packaged(file: str) -> bool:
    path = Path(file)
    return _is_installed(path) or not {"site-packages", "dist-packages"}.isdisjoint(path.parts)


def _is_installed(file: Path) -> bool:
    return any(file.is_relative_to(place) for place in sysconfig.get_paths().values())


def _file_of(module: ModuleType | None) -> Path:
    return Path(getattr(module, "__file__", None) or "")


_imported: list[str] = []  #: what is being imported now, the innermost last
passed_references = set[
    str
]()  #: references to what calls in this process were given as environments, algorithms or networks


def refuse_imported(act: str) -> None:
    """Raise ConfigError for an act that a script must not repeat when a service imports it."""
    if _imported:
        raise ConfigError(f'{_imported[-1]} {act} when it is imported: expected that below if __name__ == "__main__":')


def reference_to(part: Any, what: str) -> str:
    """The reference by which other processes find a class, function or object of a module.

    Raises:
      ConfigError: no other process can import it; the error begins with `what`.
    """
    home, name = getattr(part, "__module__", ""), getattr(part, "__qualname__", "")
    # what has another name, unless it is a mere number or list: a module has it, best the one that has made it
    if getattr(sys.modules.get(home), name, None) is not part and (name or type(part).__module__ != "builtins"):
        modules = sorted(sys.modules.copy().items(), key=lambda item: (item[0] in MAIN, item[0] != home))
        found = ((home, name) for home, module in modules for name, one in vars(module).items() if one is part)
        home, name = next(found, ("", ""))
    home = MAIN[0] if home in MAIN else home
    module = sys.modules.get(home)
    if module is None or getattr(module, name, None) is not part:
        raise ConfigError(argument=what, value=part, expected="a name, or a class or function at a module's top level")
    passed_references.add(reference := f"{home_of(module, f'{what} {name}')}:{name}")
    return reference


def home_of(module: ModuleType, what: str) -> str:
    """What stands before the name in a reference to something of this module.

    Raises:
      ConfigError: no other process can import it; the error begins with `what`.
    """
    spec, file, home = getattr(module, "__spec__", None), _file_of(module), module.__name__
    if home == MAIN[0] and spec is None and file.suffix != ".py":
        raise ConfigError(
            f"{what} is defined in a notebook or on the command line, expected a definition in a .py file"
        )
    home = spec.name if home == MAIN[0] and spec else home
    alone = home == MAIN[0] or ("." not in home and file.suffix == ".py" and file.name != "__init__.py")
    if _is_installed(file):
        return home
    folder, everywhere = _folder_of(home, file), os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if alone or folder is None or str(folder) in everywhere:
        return str(file.resolve()) if alone else home
    return f"{folder}/{home}"


def _folder_of(home: str, file: Path) -> Path | None:
    """The folder in which a module was found, given its full name; None if its file is not where that says."""
    parts = home.split(".")
    inside = file.parent if file.name == "__init__.py" else file.parent / file.name.partition(".")[0]
    return inside.absolute().parents[len(parts) - 1] if list(inside.parts[-len(parts) :]) == parts else None


def _from_folder(home: str) -> ModuleType:
    """Import a module or file; without a folder before it, that is the one that this process was started in."""
    place, _, name = home.rpartition("/")
    if name.endswith(".py"):
        path = (start_folder() / home).resolve()
        if path not in _versions:
            _versions[path] = path.stat().st_mtime_ns  # of one that is not there no folder is searched
        return _from_file(path, _versions[path])
    folder, top = (start_folder() / home).parent, name.partition(".")[0]
    if top and find_spec(top) is None and PathFinder.find_spec(top, [str(folder)]):
        search_folders[str(folder)] = None
    module = import_module(name)
    package = "".join([*getattr(module, "__path__", ())][:1])  # one without __init__.py has no file
    found = _folder_of(name, Path(getattr(module, "__file__", None) or f"{package}/__init__.py"))
    if place and not (found and found.samefile(folder)):
        raise ImportError(f"Python finds {f'that of {found}' if found else 'its own'} first")
    return module


_versions: dict[Path, int] = {}  #: of files that were imported, when they were last changed


def reread() -> None:
    """Import files anew, once they are named again, if they have changed since; packages only Python reloads."""
    _versions.clear()


@lru_cache(MOST_FILES)
def _from_file(path: Path, _version: int) -> ModuleType:
    name = f"zerobeast_file_{path.stem}_{zlib.crc32(os.fsencode(path)):08x}"  # other folders may have such a file
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    sys.modules[name] = module = module_from_spec(spec)  # before it runs: dataclasses look themselves up
    search_folders[str(path.parent)] = None
    spec.loader.exec_module(module)
    return module


class _Beside(MetaPathFinder):
    """Finds modules in the folders of references, once nothing that is installed has them."""

    def find_spec(self, name: str, path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        # some of Python's own modules are those of other systems alone
        return (
            PathFinder.find_spec(name, [*search_folders])
            if path is None and name not in sys.stdlib_module_names
            else None
        )


search_folders = dict[str, None]()  #: in which references were found, in that order
sys.meta_path.append(_Beside())


@cache
def start_folder() -> Path:
    """The folder that this process was started in: to be asked before there is an environment that may change it."""
    with explain_os_errors("the current folder"):
        return Path.cwd()


@cache
def load_entry_points() -> Any:  # EntryPoints; Python 3.11 has SelectableGroups
    return entry_points()


def forget() -> None:
    """Look anew for what is installed, once that is asked."""
    find_entry_points.cache_clear()
    load_entry_points.cache_clear()


def public(module: ModuleType) -> list[str]:
    """The names that a reference to a module may mean: its own, and none of what it imports from other packages."""
    return [name for name, part in vars(module).items() if not name.startswith("_") and not _is_foreign(part, module)]


def _is_foreign(part: Any, module: ModuleType) -> bool:
    homes = [str(each).partition(".")[0] for each in (getattr(part, "__module__", ""), module.__name__)]
    return isinstance(part, ModuleType) or (isinstance(part, type | FunctionType) and homes[0] != homes[1])
