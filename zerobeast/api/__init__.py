"""What a script or a notebook calls: train, start, load and evaluate."""
