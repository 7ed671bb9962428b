"""`python -m zerobeast.tools.chaos.witness.learner`: the learner, with the witness for an algorithm."""

from __future__ import annotations

import runpy

from zerobeast.tools.chaos.witness.algorithm import register

if __name__ == "__main__":
    register()
    runpy.run_module("zerobeast.services.learner", run_name="__main__")
