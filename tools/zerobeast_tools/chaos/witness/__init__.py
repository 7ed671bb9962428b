"""Environments, a policy and a learner that notice when a message reaches a process that it was not meant for.

env         shows who it is, which episode and which step, and accepts only the action that belongs there
algorithm   replaces a learning algorithm: stores, answers and checks; runs a service with itself, as
            `python -m zerobeast_tools.chaos.witness.algorithm broker`
"""
