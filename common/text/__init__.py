"""Text for people: made printable, and suggestions for misspelt names."""
