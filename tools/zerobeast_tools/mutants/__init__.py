"""Mutation testing: how many small faults in the product the tests notice."""
