"""IMPACT (Luo et al. 2020, arXiv:1912.00167)."""
