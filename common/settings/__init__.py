"""Settings, for every package: how a section is declared, and the sections that no algorithm owns."""
