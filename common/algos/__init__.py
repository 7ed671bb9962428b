"""Algorithms: one folder each, with the same files in it (settings, loss, algorithm, README), and what they share.

protocol.py      what services ask of an algorithm
registry.py      which algorithms there are
settings.py      settings that several have
actor_critic.py  the network, how it acts, how it sees a batch
one_step.py      learning with one step of the optimiser per batch
descent.py       one step of the optimiser
"""
