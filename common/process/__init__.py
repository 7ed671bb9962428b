"""One process: its role, logs, signals, descriptors, memory and use of the machine."""
