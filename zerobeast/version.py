"""The version of all parts, below everything else."""

__version__ = "0.1.0"
