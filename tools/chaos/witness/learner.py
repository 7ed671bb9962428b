"""`python -m zerobeast.tools.chaos.witness.learner`: the learner, with the witness for an algorithm."""

from zerobeast.tools.chaos.witness.algorithm import run_service

if __name__ == "__main__":
    run_service("learner")
