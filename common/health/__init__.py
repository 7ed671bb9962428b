"""What a service reports about itself, and how others read it."""
