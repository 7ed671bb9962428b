"""The yardstick of a round trip: `pingpong.c`, compiled where it is wanted."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("pingpong.c")
NO_COMPILER = "There is no C compiler (cc) here, so the round trip has no yardstick."
MARGIN_S = 60.0  #: beyond the measured time before something is wrong


def round_trip_us(request_bytes: int, reply_bytes: int, seconds: float) -> float | None:
    """Median round trip of two C processes over a unix socket, in microseconds; None without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory(prefix="pingpong-") as folder:
        program = f"{folder}/pingpong"
        subprocess.run([compiler, "-O2", "-o", program, str(SOURCE)], check=True)
        done = subprocess.run(
            [program, str(request_bytes), str(reply_bytes), str(seconds)],
            check=True,
            capture_output=True,
            text=True,
            timeout=seconds + MARGIN_S,
        )
    return float(done.stdout)
