"""What a run finds out, handed to an experiment tracker by a process of its own, which reads the files of the run.

No service depends on it: whatever becomes of a tracker, training goes on, and what a tracker has missed it gets later.
Each item is handed over at least once: its position is saved when the tracker's call has returned, so one whose process
is killed between the two comes again. What a tracker's own library still holds in memory by then is lost.
"""
