"""`python -m deploy.chaos.witness.broker`: the broker, with the witness for an algorithm."""

from __future__ import annotations

import runpy

from deploy.chaos.witness.algorithm import register

if __name__ == "__main__":
    register()
    runpy.run_module("services.broker", run_name="__main__")
