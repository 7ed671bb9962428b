"""Advantage-weighted regression (Peng et al. 2019, arXiv:1910.00177)."""
