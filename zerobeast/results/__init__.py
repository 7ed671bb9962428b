"""What runs have left in their folders, read and compared: curves, tables, an overview. Nothing here loads torch."""
