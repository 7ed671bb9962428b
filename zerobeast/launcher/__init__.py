"""The local launcher: every service of a run as a process of this machine, watched, shown and ended together."""
