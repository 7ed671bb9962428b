"""Sentences about flags in terms of Python: what `--name` is to a command is the argument `name=` of a call."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import ParamSpec, TypeVar

from zerobeast.common.config.flags import ALIASES
from zerobeast.common.config.plain_values import PYTHON_NAMES
from zerobeast.common.errors import BeastError
from zerobeast.common.extras import name_extra

Given = ParamSpec("Given")
Result = TypeVar("Result")
SWITCHES = ("fresh", "trust_folder", "insecure", "by_env")  #: that take no value
#: a command that a sentence quotes, which stays as it is; or a flag, perhaps with a value
_FLAG = re.compile(
    r"`[^`]*`|to see where: .*|(flag )?--([a-z][\w.-]*)"
    r"(?:(?:=| (?=['\"\d{./A-Z]|\w+[:/.]\S))('[^']*'|[^\s;,]*[^\s;,.:)]))?"
)
_SECTION_AGAIN = re.compile(r"(\w+)=\{([^{}]*)\} \1=\{")
_NAMES = {path: name for name, path in PYTHON_NAMES.items()} | ALIASES


def translate_errors(call: Callable[Given, Result]) -> Callable[Given, Result]:
    """The same function, whose errors name arguments instead of flags, and the extra that installs what is missing."""

    @wraps(call)
    def translated_call(*given: Given.args, **named: Given.kwargs) -> Result:
        try:
            with name_extra():
                return call(*given, **named)
        except BeastError as error:
            for each in (error, *error.several):
                each.args = (translate_text(str(each)), *each.args[1:])
            raise

    return translated_call


def translate_text(text: str) -> str:
    """The same text, in which flags are arguments.

    >>> translate_text("flag --ppo.lr: unknown setting; did you mean ppo.learning_rate?")
    'ppo.lr: unknown setting; did you mean ppo.learning_rate?'
    >>> translate_text("give another --name, or --fresh to start over; `beast train --fresh` does the same")
    'give another name=, or fresh=True to start over; `beast train --fresh` does the same'
    >>> translate_text("a new one needs --env; give --env own.py:Env as well")
    "a new one needs env=; give env='own.py:Env' as well"
    >>> translate_text("give --net.torso own.py:Torso --net.hidden_size=64 as well")
    "give net={'torso': 'own.py:Torso', 'hidden_size': 64} as well"
    """
    return _SECTION_AGAIN.sub(r"\1={\2, ", _FLAG.sub(_translate_flag, text))


def _translate_flag(found: re.Match[str]) -> str:
    origin, flag, value = found.groups()
    if not flag or origin:
        return found[0].removeprefix("flag --")
    section, _, name = (path := _NAMES.get(flag, flag.replace("-", "_"))).partition(".")
    if value is None:
        return f"{path}=True" if path in SWITCHES else path if name else f"{path}="
    return f"{section}={{{name!r}: {_literal(value)}}}" if name else f"{path}={_literal(value)}"


def _literal(value: str) -> str:
    """A value as Python writes it."""
    text = value.strip("'")
    with suppress(ValueError):
        return repr(json.loads(text))
    return repr(text)
