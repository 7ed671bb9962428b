"""The building blocks of the tree, apart from it so that an algorithm's folder can declare its own section."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A frozen group of settings that refuses names it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


def setting(default: Any, meaning: str, **bounds: Any) -> Any:
    """One setting: its only default, what it means (with its source), and its bounds as pydantic names them."""
    return Field(default=default, description=meaning, **bounds)
