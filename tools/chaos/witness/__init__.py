"""Environments, a policy and a learner that notice when anything reaches somebody whom it does not concern.

env         shows who it is, which episode and which step, and takes no other action than the one that belongs there
algorithm   in place of a learning algorithm: remembers, answers and checks
broker, learner   `python -m`: the services, with that algorithm
"""
