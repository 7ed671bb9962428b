"""What every service shares. Modules directly in this package import without torch."""
