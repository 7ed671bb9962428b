"""DDPG (Lillicrap et al. 2016, arXiv:1509.02971)."""
