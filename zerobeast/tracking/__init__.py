"""What a run finds out, handed to an experiment tracker by a process of its own, which reads the files of the run.

No service knows of it: whatever becomes of a tracker, training goes on, and what a tracker has missed it gets later.
"""
