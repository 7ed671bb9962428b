"""Settings that are text of a certain form: addresses and devices."""

import re
from typing import Annotated

from pydantic import AfterValidator

from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import ConfigError


def _endpoint(value: str) -> str:
    try:
        if Endpoint.parse(value).name:
            raise ConfigError("expected tcp://host:port or ipc://path")
    except ConfigError as error:
        raise ValueError(str(error).removeprefix(f"endpoint {value!r}: ")) from error
    return value


def _endpoints(value: str) -> str:
    return ",".join(_endpoint(each) for each in value.split(",") if each)


def _meeting(value: str) -> str:
    if value.startswith("tcp:"):
        return _endpoint(value)
    if value and not re.fullmatch(r"file:///.+", value):
        raise ValueError("expected tcp://host:port or file:///path")
    return value


def _device(value: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", value):
        raise ValueError("expected auto, cpu, cuda or cuda:N")
    return value


Address = Annotated[str, AfterValidator(_endpoint)]
Addresses = Annotated[str, AfterValidator(_endpoints)]
Meeting = Annotated[str, AfterValidator(_meeting)]
Device = Annotated[str, AfterValidator(_device)]
