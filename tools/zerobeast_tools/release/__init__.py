"""What a release has to pass before it is uploaded: `make release-check`."""
