"""Q(s, a) of continuous actions: acting and learning that DDPG, TD3 and SAC share."""
