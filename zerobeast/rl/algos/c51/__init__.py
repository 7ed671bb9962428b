"""C51 (Bellemare et al. 2017, arXiv:1707.06887): DQN with a distribution over returns instead of their mean."""
