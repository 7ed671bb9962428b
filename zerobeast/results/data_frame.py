"""Rows of results for scripts and notebooks."""

from collections.abc import Mapping, Sequence
from typing import Any


def to_data_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Rows as a pandas.DataFrame if pandas is installed, or else as they are."""
    try:
        import pandas as pd
    except ImportError:
        return rows
    return pd.DataFrame(rows)
