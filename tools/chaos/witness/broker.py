"""`python -m zerobeast.tools.chaos.witness.broker`: the broker, with the witness for an algorithm."""

from __future__ import annotations

import runpy

from zerobeast.tools.chaos.witness.algorithm import register

if __name__ == "__main__":
    register()
    runpy.run_module("zerobeast.services.broker", run_name="__main__")
