"""What `beast doctor` finds out."""
