"""Scripts that run inside a peer's virtual environment, where nothing of this project is installed."""
