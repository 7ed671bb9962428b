"""What a service says about itself, and how it is read."""
