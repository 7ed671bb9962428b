"""Rainbow (Hessel et al. 2018, arXiv:1710.02298) without noisy networks."""
