"""What every package knows of the settings: how a section is declared, and the sections that no algorithm owns."""
