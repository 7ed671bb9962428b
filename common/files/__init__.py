"""Files of a run: written atomically, appended to, locked, and their names."""
