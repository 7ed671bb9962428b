"""Distributed deep RL in PyTorch as four small services over ZeroMQ."""

__version__ = "0.1.0"
