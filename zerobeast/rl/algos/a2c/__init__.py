"""A2C (Mnih et al. 2016, arXiv:1602.01783), the synchronous form of A3C."""
