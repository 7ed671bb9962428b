"""Policies as folders that others can use: weights without pickles, a graph for other runtimes, and a model card."""
