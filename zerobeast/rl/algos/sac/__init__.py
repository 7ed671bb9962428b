"""SAC (Haarnoja et al. 2018b, arXiv:1812.05905)."""
