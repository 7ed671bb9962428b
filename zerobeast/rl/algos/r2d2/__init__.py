"""R2D2 (Kapturowski et al. 2019)."""
