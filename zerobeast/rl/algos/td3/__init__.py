"""TD3 (Fujimoto et al. 2018, arXiv:1802.09477)."""
