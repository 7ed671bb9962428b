"""V-MPO (Song et al. 2019, arXiv:1909.12238)."""
