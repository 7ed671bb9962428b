"""`python -m deploy.chaos.witness.learner`: the learner, with the witness for an algorithm."""

from __future__ import annotations

import runpy

from deploy.chaos.witness.algorithm import register

if __name__ == "__main__":
    register()
    runpy.run_module("services.learner", run_name="__main__")
