"""Parts that other packages bring: algorithms, networks and environments, found by name or imported from a reference.

A name is that of an entry point of an installed package, such as `ppo`; our own parts are found in the same way. A
reference names an object in a module or in a file, which need not be installed: `package.module:NAME` or
`folder/script.py:NAME`.
"""

import os
import sys
import sysconfig
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.process.extras import EXTRAS, how_to_install
from zerobeast.common.text import did_you_mean, suggestion


@cache
def installed(group: str) -> Mapping[str, tuple[EntryPoint, ...]]:
    """The entry points of a group by name, such as those of "zerobeast.algorithms"."""
    found: dict[str, dict[str, EntryPoint]] = {}
    for entry in sorted(_described().select(group=group)):  # one may be there twice, as with a stale dist-info
        found.setdefault(entry.name, {}).setdefault(entry.value, entry)
    return {name: tuple(entries.values()) for name, entries in found.items()}


def find(group: str, name: str, setting: str) -> Any:
    """The part that a setting names.

    Args:
      group: of entry points.
      name: of an entry point, or a reference.
      setting: the setting's name, for errors.

    Raises:
      ConfigError: it is unknown, several packages bring one of this name, or it cannot be imported.
    """
    if ":" in name:
        find_own_modules()
        return load(name, f"{setting} {name}")
    if name not in installed(group):
        raise ConfigError(f"{setting} {name!r}: {alternatives(group, name)}")
    return load(reference_of(group, name, f"{setting} {name}", "module:NAME"), f"{setting} {name}")


def alternatives(group: str, unknown: str, others: Sequence[str] = ()) -> str:
    """What a setting may name instead of a part that is not installed; `others` are names beside those of parts."""
    names = dict.fromkeys([*others, *installed(group)])
    hint = did_you_mean(unknown, names) or "; a package that brings it has to be installed here"
    return f"expected {' or '.join(filter(None, (', '.join(names), 'module:NAME')))}{hint}"


def reference_of(group: str, name: str, what: str, expected: str = "one") -> str:
    """The reference that an entry point stands for; `what` needs it, for errors.

    Raises:
      ConfigError: several packages bring one of this name.
    """
    first, *others = entries = installed(group)[name]
    if others:
        brought = " and ".join(f"{entry.value} of {entry.dist.name if entry.dist else '?'}" for entry in entries)
        raise ConfigError(f"{what}: two packages bring one of this name, {brought}: expected {expected}")
    return first.value


def load(reference: str, what: str) -> Any:
    """The object that `module:NAME` or `file.py:NAME` stands for; `what` needs it, for errors.

    Raises:
      ConfigError: the module cannot be imported or has no such name.
    """
    home, _, name = reference.rpartition(":")
    module = module_of(home, what)
    if not hasattr(module, name):
        raise ConfigError(f"{what}: {home} has no {name!r}{suggestion(name, public(module))}")
    return getattr(module, name)


@contextmanager
def calling(what: str) -> Iterator[None]:
    """Turn whatever a part raises into a ConfigError that begins with `what`; our own errors pass."""
    try:
        yield
    except BeastError:
        raise
    except Exception as error:
        raise ConfigError(f"{what}: {type(error).__name__}: {error}") from error


def module_of(home: str, what: str) -> ModuleType:
    """Import a module by its name, or a file `*.py` by its path, with `__name__` other than "__main__".

    Raises:
      ConfigError: it cannot be imported; the error begins with `what`.
    """
    _imported.append(home)
    try:
        return _from_file((find_own_modules() / home).resolve()) if home.endswith(".py") else import_module(home)
    except (Exception, SystemExit) as error:  # foreign code may raise anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
            reason = how_to_install(error)
        raise ConfigError(f"{what}: {home} cannot be imported: {reason}") from error
    finally:
        _imported.pop()


_imported: list[str] = []  #: what is being imported now, the innermost last


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
    # what has another name, unless it is a mere number or list: a module has it, better one than the script itself
    if getattr(sys.modules.get(home), name, None) is not part and (name or type(part).__module__ != "builtins"):
        modules = sorted(sys.modules.copy().items(), key=lambda item: item[0] == "__main__")
        found = ((home, name) for home, module in modules for name, one in vars(module).items() if one is part)
        home, name = next(found, ("", ""))
    module = sys.modules.get(home)
    if module is None or getattr(module, name, None) is not part:
        raise ConfigError(f"{what} is {part!r:.100}, expected a name, or a class or function at a module's top level")
    spec, file = getattr(module, "__spec__", None), Path(getattr(module, "__file__", None) or "")
    if home == "__main__" and spec is None and file.suffix != ".py":
        raise ConfigError(f"{what} {name} is defined in a notebook or on the command line, expected one in a file *.py")
    home = spec.name if home == "__main__" and spec else home
    installed = any(file.is_relative_to(place) for place in sysconfig.get_paths().values())
    alone = home == "__main__" or ("." not in home and file.suffix == ".py" and file.name != "__init__.py")
    return f"{file.resolve()}:{name}" if alone and not installed else f"{home}:{name}"


@cache
def _from_file(path: Path) -> ModuleType:
    name = f"zerobeast_file_{path.stem}_{zlib.crc32(os.fsencode(path)):08x}"  # other folders may have such a file
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    sys.modules[name] = module = module_from_spec(spec)  # before it runs: dataclasses look themselves up
    if (folder := str(path.parent)) not in sys.path:
        sys.path.append(folder)  # the modules beside a script, as Python itself finds them
    spec.loader.exec_module(module)
    return module


@cache  # before there is an environment that may change the folder; worker processes inherit sys.path
def find_own_modules() -> Path:
    """Let references name modules in the folder that this process was started in; what is installed comes first.

    Returns:
      The folder, from which the paths of files count too.
    """
    _described()  # a package description in that folder installs nothing
    folder = Path.cwd()
    sys.path.append(str(folder))
    return folder


@cache
def _described() -> Any:  # EntryPoints; Python 3.11 has SelectableGroups
    return entry_points()


def public(module: ModuleType) -> list[str]:
    return [name for name in vars(module) if not name.startswith("_")]
