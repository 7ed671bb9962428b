"""What makes a process one of the services: its start and exit code, its loop, and the server of its health page."""
