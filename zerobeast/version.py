"""The version of all parts, in a module that imports nothing."""

__version__ = "0.1.0"
