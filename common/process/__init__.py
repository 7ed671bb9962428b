"""One process: its role, logs, signals, memory and use of the machine."""
